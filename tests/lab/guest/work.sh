# work.sh start TAG OPTION... | stop TAG: runs gpu-work beside whatever else
# the guest does. Its lines become facts: the last one of each kind counts.

case $1 in
start)
    tag=$2
    shift 2
    # One reader for all of it keeps the order.
    {
        /run/lab/gpu-work "$@" 2>&1 &
        echo $! >"/run/work-$tag.pid"
        wait $!
        echo "exit $?"
    } | sed -u -e "s|^exit |LAB work-exit/$tag |;t" \
        -e "s|^{\"mismatch\"|LAB work-mismatch/$tag &|;t" \
        -e "s|^{|LAB work/$tag {|;t" \
        -e "s|^|LAB work-said/$tag |" &
    ;;
stop)
    kill -TERM "$(cat "/run/work-$2.pid")"
    ;;
*)
    echo "LAB guest-failed work.sh: $1 is none of start, stop"
    exit 2
    ;;
esac
