package configuration

import (
	"reflect"
	"testing"
)

// TestFlagValues: what flags say is what they are said to be, and saying it again changes
// nothing.
func TestFlagValues(t *testing.T) {
	given := map[string]string{
		"max-pods": "7", "enable-server": "false", "sync-frequency": "1m30s", "cluster-dns": "[10.0.0.1,10.0.0.2]", "eviction-hard": "memory.available<1Gi,nodefs.available<5%",
		"kube-reserved": "cpu=100m,memory=1Gi", "register-with-taints": "a=b:NoSchedule,c:NoExecute", "reserved-memory": "0:hugepages-2Mi=2Mi,memory=1Gi,1:memory=1Gi",
		"manifest-url-header": "a:b,a:c", "feature-gates": "AllAlpha=false,MemoryQoS=true", "cluster-domain": "x.test", "cpu-cfs-quota-period": "10ms",
	}
	var d Document
	for name, value := range given {
		if name == "cluster-dns" {
			value = value[1 : len(value)-1]
		}
		if err := d.Set(FlagNamed(name), value); err != nil {
			t.Fatal(err)
		}
	}
	s, _, err := typed(d.values)
	if err != nil {
		t.Fatal(err)
	}
	got, err := FlagValues(s)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range given {
		if got[name] != value {
			t.Errorf("--%s: %q, want %q", name, got[name], value)
		}
	}
	for name, value := range map[string]string{"fail-swap-on": "false", "port": "0", "file-check-frequency": "0s", "allowed-unsafe-sysctls": "[]", "qos-reserved": "", "pod-cidr": ""} {
		if got[name] != value {
			t.Errorf("--%s, which is not said: %q, want %q", name, got[name], value)
		}
	}
	if len(got) != len(Flags) {
		t.Errorf("%d flags of %d", len(got), len(Flags))
	}
	var again Document
	for name, value := range got {
		if name == "cluster-dns" {
			value = value[1 : len(value)-1]
		}
		if given[name] != "" {
			if err := again.Set(FlagNamed(name), value); err != nil {
				t.Fatal(err)
			}
		}
	}
	if b, _, err := typed(again.values); err != nil || !reflect.DeepEqual(b, s) {
		t.Errorf("said again: %+v %v, want %+v", b, err, s)
	}
}
