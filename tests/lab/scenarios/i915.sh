# An unmodified i915 guest, started by plain `xl create` with a vgpu= line,
# runs GPU work through vgpu-dm, the rings and vgpud; then a second one beside
# it. (The scenario stub has $g2_option for the second one's device, and does more
# then.)

boot_limit=300
mmio_rounds=50
[ "$LAB_SHORT" = 1 ] || [ -n "$LAB_ONLY" ] && mmio_rounds=10

config() { # NAME [KEY=VALUE]
    # A device of QEMU's own, to compare register reads with.
    guest_config "$1" '"-device", "edu,addr=0x11"' "$(vgpu_line "$2")"
}

# memory TAG: peak and present resident size of our processes, KiB; every
# sample is kept
memory() {
    for name in vgpu-dm vgpud; do
        for pid in $(pidof "$name"); do
            awk -v n="$name" -v t="$1" '/^VmHWM/ { peak = $2 } /^VmRSS/ { now = $2 }
                END { print n, t, peak, now }' "/proc/$pid/status"
        done
    done >>/run/memory
    block memory /run/memory
}

igt_tests() {
    while read -r program subtests seconds environment; do
        stage "g1: igt $program@$subtests"
        # What hangs is seen while it does: a time-out only just before it.
        if [ -n "$LAB_ONLY" ]; then
            look_now_and_then g1 10 "seen-$program-"
        else
            look_after g1 $((seconds - 10)) "late-$program"
        fi
        guest_do g1 $((seconds + 60)) i915 igt igt "$program" "$subtests" "$seconds" "$environment"
        look_no_more
    done </lab/igt.list
    guest_do g1 120 i915 report
    inspect g1 igt
    memory igt
}

# What some tests of the longer forms fill.
[ -d /lab/boot-large ] && guest_boot=/lab/boot-large
config g1
guest_boot=/lab/boot
config g2 "$g2_option"

[ "$LAB_DEVICE" = 1 ] && stage "vgpud starts" && start_vgpud
[ -n "$g2_option" ] && vgpud_dies_early

stage "xl create g1"
guest_create g1
stage "guest g1 boots"
guest_ready g1 $boot_limit
stage "g1: i915 probes"
guest_do g1 300 i915 probe
inspect g1 probe
memory probe
[ -n "$g2_option" ] && stub_here

stage "g1: register reads, ours and QEMU's"
guest_do g1 300 i915 mmio $mmio_rounds

# Only some tests, to work on them.
if [ -n "$LAB_ONLY" ]; then
    fact igt-only "$LAB_ONLY"
    igt_tests
    guest_start g1 poweroff
    guest_gone g1 60
    daemons_end
    finish ok
fi

igt_tests

stage "xl create g2, beside g1"
guest_create g2
stage "guest g2 boots"
guest_ready g2 $boot_limit
stage "g2: i915 probes"
guest_do g2 300 i915 probe
stage "g1 and g2 at once: igt gem_exec_store@basic"
guest_start g1 i915 igt both gem_exec_store basic 120
first=$sequence
guest_start g2 i915 igt both gem_exec_store basic 120
second=$sequence
guest_wait g1 "^LAB end $first " 180 "end of gem_exec_store with g2 beside"
guest_wait g2 "^LAB end $second " 180 "end of gem_exec_store with g1 beside"
guest_do g1 120 i915 report
guest_do g2 120 i915 report
memory both
if [ -n "$g2_option" ]; then
    stage "g2: register reads, with g1 beside at rest"
    guest_do g2 300 i915 mmio $mmio_rounds
    vgpud_anew
fi

stage "both guests go"
guest_start g1 poweroff
guest_start g2 poweroff
guest_gone g1 60
guest_gone g2 60

daemons_end
