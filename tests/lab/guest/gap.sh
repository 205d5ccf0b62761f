# gap.sh start | max TAG: how long this guest stood still, by its own clocks.

case $1 in
start)
    /run/lab/clock-gap >>/run/gaps 2>&1 &
    ;;
max)
    # The longest since the last time, with what each clock saw of it.
    echo "LAB gap/$2 $(sort -n /run/gaps | tail -n 1)"
    : >/run/gaps
    ;;
*)
    echo "LAB guest-failed gap.sh: $1 is none of start, max"
    exit 2
    ;;
esac
