# Guests whose GPU is at work, every result checked, while what serves them is
# killed at random instants: a device model in dom0, which is also made to hang,
# and vgpud; then a device model in a domain of its own, and that domain. After
# each the guest's work has to go on.

boot_limit=300
# For each guest: its option, then each kind and how many. Xen 4.17 lets a guest
# have eight ioreq servers, one of which is QEMU's, and each domain that ends
# leaves one.
if [ "$LAB_SHORT" = 1 ]; then
    guests="g1 g2"
    g1="stub=0 dm=5 vgpud=1 stop=1"
    g2="stub=1 stubdm=1 stub=1"
else
    guests="g1 g2 g3"
    g1="stub=0 dm=50 vgpud=10 stop=10"
    g2="stub=1 stub=5 stubdm=5 stubhang=3"
    g3="stub=1 stubdm=5 stub=5 stubhang=2"
fi
seed=20261130
work="--engine all --passes 2 --buffers 2 --contexts 2 --cells 64"

# kinds_of GUEST: its kinds, without its option.
kinds_of() { eval "echo \"\$$1\"" | cut -d' ' -f2-; }

# Other kinds of kills by their names, see kill_KIND below.
total=
for guest in $guests; do total="$total $(kinds_of "$guest")"; done
fact kills "$total"
fact guests "$guests"
fact seed "$seed"

# verified GUEST: buffers that its gpu-work has found right so far.
verified() {
    grep -o '^LAB work/crash .*"verified":[0-9]*' "$(guest_log "$1")" | tail -n 1 | sed 's/.*://'
}

# device_model: what serves the guest when something does, as KIND:ID.NUMBER;
# each device model has another.
device_model() {
    timeout 10 vgpuctl list --json 2>/dev/null | tr -d ' \n",' |
        sed -n 's/.*state:running.*dm:{\([a-z]*:[0-9]*\)}.*restarts:\([0-9]*\).*/\1.\2/p'
}

# replaced SECONDS: until another device model serves the guest than $dm.
replaced() {
    deadline=$(($(cut -d. -f1 /proc/uptime) + $1))
    while [ "$(cut -d. -f1 /proc/uptime)" -lt "$deadline" ]; do
        now=$(device_model)
        [ -n "$now" ] && [ "$now" != "$dm" ] && return 0
        sleep 0.05
    done
    return 1
}

# where: the number in $dm.
where() { echo "$dm" | sed 's/.*:\([0-9]*\)\..*/\1/'; }

# Each kills one thing and returns when it is replaced.
kill_dm() { kill -9 "$(where)" && replaced 60; }

kill_stop() { kill -STOP "$(where)" && replaced 60; }

kill_vgpud() {
    kill -9 "$vgpud_pid"
    wait "$vgpud_pid" 2>/dev/null
    start_vgpud
    replaced 60
}

kill_stubdm() { vgpuctl restart-dm "$domid" && replaced 60; }

kill_stubhang() { vgpuctl restart-dm "$domid" --hang && replaced 60; }

# Nobody is told, and the domain has no time to say anything. It stands still since
# stop_stub, see there.
kill_stub() { xl destroy "$(where)" && replaced 90; }

# stop_stub: a vCPU is to wait for an answer of the domain that is destroyed. The
# guest's work asks for something many times a second, so with the domain stopped
# it soon asks in vain.
stop_stub() { xl pause "$(where)" && sleep 1; }

# strike GUEST KIND NUMBER: one kill, at a random instant of the guest's work, and
# what became of it: milliseconds to recover, or why it did not.
strike() {
    pause=$(awk -v s="$((seed + strikes))" 'BEGIN { srand(s); printf "%.2f", 0.5 + rand() * 2 }')
    strikes=$((strikes + 1))
    dm=$(device_model)
    [ -n "$dm" ] || { fact "kill/$2/$3" "lost: nothing serves the guest"; return 1; }
    sleep "$pause"
    [ "$2" != stub ] || stop_stub || { fact "kill/$2/$3" "lost: cannot be stopped"; return 1; }
    start=$(uptime_now)
    "kill_$2" || { fact "kill/$2/$3" "lost: no device model in time"; return 1; }
    ms=$(awk -v a="$start" -v b="$(uptime_now)" 'BEGIN { printf "%d", (b - a) * 1000 }')
    before=$(verified "$1")
    deadline=$(($(cut -d. -f1 /proc/uptime) + 90))
    until [ "$(verified "$1")" -gt "$before" ]; do
        guest_alive "$1" || { fact "kill/$2/$3" "lost: the guest ended"; return 1; }
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$deadline" ] ||
            { fact "kill/$2/$3" "lost: its work stands still"; return 1; }
        sleep 0.3
    done
    fact "kill/$2/$3" "$ms"
}

# rounds GUEST: its kills, the kinds in turns, so that each meets every state that
# another left.
rounds() {
    round=0
    more=yes
    while [ $more = yes ]; do
        more=no
        round=$((round + 1))
        for kind in $(kinds_of "$1"); do
            count=${kind#*=}
            kind=${kind%=*}
            [ $round -gt "$count" ] && continue
            more=yes
            # Of all guests.
            eval "number=\$((\${done_$kind:-0} + 1)); done_$kind=\$number"
            stage "kill of $kind, number $number"
            # shellcheck disable=SC2154 # set by eval
            strike "$1" "$kind" "$number" || return 1
        done
    done
}

# survive GUEST: all that a guest goes through.
survive() {
    option=$(eval "echo \"\$$1\"" | cut -d' ' -f1)
    guest_config "$1" "" "$(vgpu_line "$option")"
    stage "xl create $1"
    guest_create "$1"
    domid=$(cat "/run/domid-$1")
    stage "guest $1 boots"
    guest_ready "$1" $boot_limit
    stage "i915 is loaded"
    guest_do "$1" 300 i915 bind
    inspect "$1" probe
    stage "the guest works on every engine"
    # shellcheck disable=SC2086 # the options are words
    guest_do "$1" 60 work start crash $work
    guest_wait "$1" '^LAB work/crash .*"verified":[1-9]' 120 "first verified buffer"
    rounds "$1" || {
        # It is told; the others may do better.
        threads "lost-$1"
        inspect "$1" lost
        xl destroy "$domid"
        return 0
    }
    stage "the work ends"
    guest_do "$1" 60 work stop crash
    guest_wait "$1" '^LAB work-exit/crash ' 120 "end of gpu-work"
    guest_do "$1" 120 i915 complaints
    stage "the guest goes"
    guest_start "$1" poweroff
    guest_gone "$1" 60
}

[ "$LAB_DEVICE" = 1 ] && stage "vgpud starts" && start_vgpud

strikes=0
for guest in $guests; do survive "$guest"; done
ask list list --json
# A domain once, however often another was to take its place.
fact in-flight "$(grep -oE 'domain [0-9]+ was destroyed; [1-9][0-9]* vCPUs waited in it' \
    /results/vgpud.log | sort -u | wc -l)"
daemons_end
stubs_end
