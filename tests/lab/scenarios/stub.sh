# Scenario i915 with the device model of g1 in a domain of its own; that of g2 is
# a process of dom0 beside it, to compare.

# stub_here: what xl and vgpud know of g1's stub domain.
stub_here() {
    g1=$(cat /run/domid-g1)
    xl list >/results/xl-list-stub.txt
    fact stub-memory-mb "$(awk -v n="vgpu-dm-$g1" '$1 == n { print $3 }' /results/xl-list-stub.txt)"
    ask stub-list list --json
}

# vgpud_dies_early: vgpud is killed while a stub domain for g1 is there but has
# not attached: when it has a name, and when it runs. The next vgpud destroys it,
# and that xl create fails.
vgpud_dies_early() {
    for at in made runs; do
        stage "vgpud is killed while a stub domain comes up: $at"
        case $at in
            made) sign='name = "vgpu-dm-' ;;
            runs) sign='device-model-vgpu' ;;
        esac
        xl create /lab/g1.cfg >"/results/xl-create-early-$at.txt" 2>&1 &
        create=$!
        until xenstore-ls /local/domain | grep -q "$sign"; do
            kill -0 $create 2>/dev/null ||
                { finish "no stub domain: $(head -n 1 "/results/xl-create-early-$at.txt")"; return 1; }
            sleep 0.05
        done
        kill -KILL "$vgpud_pid"
        wait "$vgpud_pid" 2>/dev/null
        start_vgpud
        xl list >"/results/xl-list-early-$at.txt"
        fact "early-left/$at" "$(grep -c vgpu-dm- "/results/xl-list-early-$at.txt")"
        wait $create
        fact "early-create/$at" $?
    done
}

# again HOW TAG SIGNAL: vgpud ends by SIGNAL while g1 works, and the next one
# takes both guests over.
again() {
    stage "g1 works, and vgpud is $1"
    guest_start g1 i915 igt "$2" gem_exec_store basic 120
    work=$sequence
    sleep 1
    kill "-$3" "$vgpud_pid"
    wait "$vgpud_pid" 2>/dev/null
    start=$(uptime_now)
    start_vgpud
    fact "adopted-seconds/$2" "$(since "$start")"
    ask "adopted/$2" list --json
    guest_wait g1 "^LAB end $work " 180 "end of gem_exec_store with another vgpud"
}

# vgpud_anew: vgpud is killed, and stopped as a service manager does it.
vgpud_anew() {
    again killed killed KILL
    again stopped stopped TERM
    guest_do g1 120 i915 report
}

g2_option=stub=0
. /lab/scenarios/i915.sh
stubs_end
