# Two guests with different weights work on one engine at once, each checking
# every result; how the engine's time was shared is read from vgpud.

boot_limit=300
engine=bcs
[ "$LAB_SHORT" = 1 ] && window=20 || window=60
# A request is much longer on the GPU than it takes to submit and to verify, and
# than a guest takes to hear that one is done: a register access is a thousand
# times slower here than on a real host, and the guests share a CPU.
# Each has a context of its own: then a guest's driver has the GPU take two at
# once, and the next one waits there when one is done.
work="--engine $engine --passes 128 --buffers 4 --contexts 4"

fact engine "${engine}0"

# snapshot TAG: all vGPUs' counters at once, and when.
snapshot() {
    [ "$LAB_DEVICE" = 1 ] || return 0
    before=$(uptime_now)
    timeout 30 vgpuctl inspect --json >"/results/inspect-gpu-$1.json" 2>"/results/inspect-gpu-$1.err"
    fact "inspect-status/gpu-$1" $?
    fact "snapshot/$1" "$before $(uptime_now)"
    block "inspect/gpu-$1" "/results/inspect-gpu-$1.json"
}

[ "$LAB_DEVICE" = 1 ] && stage "vgpud starts" && start_vgpud

for guest in "g1 100" "g2 300"; do
    name=${guest% *}
    weight=${guest#* }
    fact "weight/$name" "$weight"
    [ "$LAB_DEVICE" = 1 ] && vgpu="vgpu = [\"type=bdw,slot=10,weight=$weight\"]"
    guest_config "$name" "" "$vgpu"
    stage "xl create $name, weight $weight"
    guest_create "$name"
    stage "guest $name boots"
    guest_ready "$name" $boot_limit
    stage "$name: i915 is loaded"
    guest_do "$name" 300 i915 bind
    inspect "$name" probe
done

stage "both guests work on ${engine}0"
for name in g1 g2; do
    # shellcheck disable=SC2086 # the options are words
    guest_do "$name" 60 work start share $work --seed "${name#g}"
done
for name in g1 g2; do
    guest_wait "$name" '^LAB work/share .*"verified":[1-9]' 120 "first verified buffer"
done
# Past the start of the second one, which the first had to itself.
sleep 3

stage "$window s of both at work"
snapshot before
sleep $window
snapshot after
[ "$LAB_DEVICE" = 1 ] && timeout 60 vgpuctl trace -n 2000 >/results/trace.txt 2>&1

stage "both stop"
for name in g1 g2; do
    guest_do "$name" 60 work stop share
done
for name in g1 g2; do
    guest_wait "$name" '^LAB work-exit/share ' 120 "end of gpu-work"
    guest_do "$name" 120 i915 complaints
done

stage "both guests go"
guest_start g1 poweroff
guest_start g2 poweroff
guest_gone g1 60
guest_gone g2 60
daemons_end
