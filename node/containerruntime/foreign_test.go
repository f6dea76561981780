package containerruntime

import "testing"

// TestSaysBelow: a sandbox is ours by the field that says so, and not by what a pod that is
// another's says in its annotations.
func TestSaysBelow(t *testing.T) {
	cgroups := []string{"/knarr-1/kubepods/", "/knarr_1.slice/knarr_1-kubepods.slice/", "knarr_1-kubepods-"}
	for document, want := range map[string]bool{
		`{"config":{"linux":{"cgroup_parent":"/knarr-1/kubepods/besteffort/pod1"}}}`:                                 true,
		`{"runtimeSpec":{"linux":{"cgroupsPath":"/knarr-1/kubepods/besteffort/pod1/crio-2"}}}`:                       true,
		`{"config":{"linux":{"cgroup_parent":"/knarr-10/kubepods/besteffort/pod1"}}}`:                                false,
		`{"config":{"linux":{"cgroup_parent":"/kubepods/besteffort/pod1"}}}`:                                         false,
		`{"config":{"linux":{"cgroup_parent":"/knarr_1.slice/knarr_1-kubepods.slice/knarr_1-kubepods-pod1.slice"}}}`: true,
		`{"runtimeSpec":{"linux":{"cgroupsPath":"knarr_1-kubepods-pod1.slice:crio:2"}}}`:                             true,
		`{"runtimeSpec":{"linux":{"cgroupsPath":"knarr_10-kubepods-pod1.slice:crio:2"}}}`:                            false,
		`{"config":{"annotations":{"a":"\"cgroup_parent\":\"/knarr-1/kubepods/x\""}},"cgroup_parent":"/kubepods"}`:   false,
	} {
		if got := saysBelow(document, cgroups); got != want {
			t.Errorf("%s: %v", document, got)
		}
	}
}
