# A guest whose GPU is at work, every result checked, while what serves it is
# killed at random instants: its device model, which is also made to hang, and
# vgpud. After each the guest's work has to go on.

boot_limit=300
if [ "$LAB_SHORT" = 1 ]; then
    kills="dm=5 vgpud=1 stop=1"
else
    kills="dm=50 vgpud=10 stop=10"
fi
seed=${LAB_SEED:-20261130}
work="--engine all --passes 2 --buffers 2 --contexts 2 --cells 64"

# Other kinds of kills by their names, see kill_VICTIM below.
fact kills "$kills"
fact seed "$seed"

# verified: buffers that the guest's gpu-work has found right so far.
verified() {
    grep -o '^LAB work/crash .*"verified":[0-9]*' "$(guest_log g1)" | tail -n 1 | sed 's/.*://'
}

# device_model: the process id of the guest's device model when it serves the
# guest, else nothing.
device_model() {
    timeout 10 vgpuctl list --json 2>/dev/null | tr -d ' \n",' |
        sed -n 's/.*state:running.*dm:{process:\([0-9]*\).*/\1/p'
}

# replaced PID SECONDS: until another device model serves the guest.
replaced() {
    deadline=$(($(cut -d. -f1 /proc/uptime) + $2))
    while [ "$(cut -d. -f1 /proc/uptime)" -lt "$deadline" ]; do
        now=$(device_model)
        [ -n "$now" ] && [ "$now" != "$1" ] && return 0
        sleep 0.05
    done
    return 1
}

# Each kills one thing and returns when it is replaced.
kill_dm() {
    kill -9 "$dm"
    replaced "$dm" 60
}

kill_stop() {
    kill -STOP "$dm"
    replaced "$dm" 60
}

kill_vgpud() {
    kill -9 "$vgpud_pid"
    wait "$vgpud_pid" 2>/dev/null
    start_vgpud
    replaced "$dm" 60
}

# strike VICTIM NUMBER: one kill, at a random instant of the guest's work, and
# what became of it: milliseconds to recover, or why it did not.
strike() {
    pause=$(awk -v s="$((seed + strikes))" 'BEGIN { srand(s); printf "%.2f", 0.5 + rand() * 2 }')
    strikes=$((strikes + 1))
    dm=$(device_model)
    [ -n "$dm" ] || { fact "kill/$1/$2" "lost: nothing serves the guest"; return 1; }
    sleep "$pause"
    start=$(uptime_now)
    "kill_$1" || { fact "kill/$1/$2" "lost: no device model within 60 s"; return 1; }
    ms=$(awk -v a="$start" -v b="$(uptime_now)" 'BEGIN { printf "%d", (b - a) * 1000 }')
    before=$(verified)
    deadline=$(($(cut -d. -f1 /proc/uptime) + 90))
    until [ "$(verified)" -gt "$before" ]; do
        guest_alive g1 || { fact "kill/$1/$2" "lost: the guest ended"; return 1; }
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$deadline" ] ||
            { fact "kill/$1/$2" "lost: its work stands still"; return 1; }
        sleep 0.3
    done
    fact "kill/$1/$2" "$ms"
}

[ "$LAB_DEVICE" = 1 ] && stage "vgpud starts" && start_vgpud

guest_config g1 "" "$(vgpu_line)"
stage "xl create g1"
guest_create g1
stage "guest g1 boots"
guest_ready g1 $boot_limit
stage "i915 is loaded"
guest_do g1 300 i915 bind
inspect g1 probe

stage "the guest works on every engine"
# shellcheck disable=SC2086 # the options are words
guest_do g1 60 work start crash $work
guest_wait g1 '^LAB work/crash .*"verified":[1-9]' 120 "first verified buffer"

strikes=0
# In turns, so that each kind meets every state that another left.
round=0
more=yes
while [ $more = yes ]; do
    more=no
    round=$((round + 1))
    for kind in $kills; do
        count=${kind#*=}
        kind=${kind%=*}
        [ $round -gt "$count" ] && continue
        more=yes
        stage "kill of $kind, $round of $count"
        strike "$kind" $round || { more=no; break; }
    done
done
ask list list --json

stage "the work ends"
guest_do g1 60 work stop crash
guest_wait g1 '^LAB work-exit/crash ' 120 "end of gpu-work"
guest_do g1 120 i915 complaints

stage "the guest goes"
guest_start g1 poweroff
guest_gone g1 60
daemons_end
