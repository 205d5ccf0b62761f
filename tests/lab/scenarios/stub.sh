# Scenario i915 with the device model of g1 in a domain of its own; that of g2 is
# a process of dom0 beside it, to compare.

# stub_here: what xl and vgpud know of g1's stub domain.
stub_here() {
    g1=$(cat /run/domid-g1)
    xl list >/results/xl-list-stub.txt
    fact stub-memory-mb "$(awk -v n="vgpu-dm-$g1" '$1 == n { print $3 }' /results/xl-list-stub.txt)"
    ask stub-list list --json
}

g2_option=stub=0
. /lab/scenarios/i915.sh
stubs_end
