package cgroup

import "testing"

// TestSlicePath: the names are upstream's, from its tests of ToSystemd.
func TestSlicePath(t *testing.T) {
	for name, want := range map[string]string{
		"":                             "/",
		"/":                            "/",
		"/system":                      "/system.slice",
		"/system/Burstable":            "/system.slice/system-Burstable.slice",
		"/Burstable/pod-123":           "/Burstable.slice/Burstable-pod_123.slice",
		"test/a/b":                     "/test.slice/test-a.slice/test-a-b.slice",
		"/test/a/b/Burstable":          "/test.slice/test-a.slice/test-a-b.slice/test-a-b-Burstable.slice",
		"/kubepods":                    "/kubepods.slice",
		"/knarr-2/kubepods/besteffort": "/knarr_2.slice/knarr_2-kubepods.slice/knarr_2-kubepods-besteffort.slice",
		"/BestEffort/pod-6c1a4e95-6bb6-11e6-bc26-28d2444e470d": "/BestEffort.slice/BestEffort-pod_6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice",
	} {
		if got := SlicePath(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestChild(t *testing.T) {
	for _, c := range []struct{ parent, part, want string }{
		{"/kubepods", "burstable", "/kubepods/burstable"},
		{"/kubepods.slice", "burstable", "/kubepods.slice/kubepods-burstable.slice"},
		{"/kubepods.slice/kubepods-burstable.slice", "poda-b", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice"},
	} {
		if got := Child(c.parent, c.part); got != c.want {
			t.Errorf("%s below %s is %s, want %s", c.part, c.parent, got, c.want)
		}
	}
}

// TestReservedSlice: as upstream reads what kubeReservedCgroup and systemReservedCgroup say.
func TestReservedSlice(t *testing.T) {
	for setting, want := range map[string]string{
		"/test":                              "/test.slice",
		"/test.slice":                        "/test.slice",
		"system.slice":                       "/system.slice",
		"/a.slice/a-b_c.slice/a-b_c-d.slice": "/a.slice/a-b_c.slice/a-b_c-d.slice",
	} {
		if got := ReservedSlice(setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
}

func TestContainerGroup(t *testing.T) {
	for _, c := range []struct{ pod, runtime, want string }{
		{"/kubepods/podx", "containerd", "/kubepods/podx/id"},
		{"/k.slice/k-podx.slice", "containerd", "/k.slice/k-podx.slice/cri-containerd-id.scope"},
		{"/k.slice/k-podx.slice", "cri-o", "/k.slice/k-podx.slice/crio-id.scope"},
	} {
		if got := ContainerGroup(c.pod, c.runtime, "id"); got != c.want {
			t.Errorf("of %s in %s: %s, want %s", c.runtime, c.pod, got, c.want)
		}
	}
}
