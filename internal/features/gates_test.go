package features

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct{ asked, on, idle, err string }{
		{"", "", "", ""},
		{"HPAScaleToZero=true", "HPAScaleToZero", "", ""},
		{" HPAScaleToZero = true ", "HPAScaleToZero", "", ""},
		{"kube:HPAScaleToZero=1", "HPAScaleToZero", "", ""},
		{"HPAScaleToZero=true,HPAScaleToZero=false", "", "", ""},
		{"SidecarContainers=true", "SidecarContainers", "", ""},
		{"SidecarContainers=false", "", "", "cannot set feature gate SidecarContainers to false, feature is locked to true"},
		{"CPUManagerPolicyAlphaOptions=true", "CPUManagerPolicyAlphaOptions", "CPUManagerPolicyAlphaOptions=true", ""},
		{"AllAlpha=true", "CPUManagerPolicyAlphaOptions", "AllAlpha=true", ""},
		{"AllAlpha=true,CPUManagerPolicyAlphaOptions=false", "", "AllAlpha=true", ""},
		{"AllBeta=true", "CPUManagerPolicyBetaOptions", "AllBeta=true", ""},
		{"NoSuch=true", "", "", "unrecognized feature gate: NoSuch"},
		{"NoSuch", "", "", "missing bool value for NoSuch"},
		{"HPAScaleToZero=maybe", "", "", "invalid value of HPAScaleToZero=maybe, err: "},
		{"etcd:HPAScaleToZero=true", "", "", "component not registered: etcd"},
	} {
		s, err := Parse(strings.Split(tt.asked, ","))
		if err != nil || tt.err != "" {
			if tt.err == "" || err == nil || !strings.HasPrefix(err.Error(), tt.err) {
				t.Errorf("%s: %v, want %q", tt.asked, err, tt.err)
			}
			continue
		}
		for _, name := range strings.Fields(tt.on) {
			if !s.Enabled(name) {
				t.Errorf("%s: %s is off", tt.asked, name)
			}
		}
		if got := strings.Join(s.Idle(ScaleToZero), ","); got != tt.idle {
			t.Errorf("%s: idle %q, want %q", tt.asked, got, tt.idle)
		}
	}
}

// TestEnabled: a setting of a whole stage leaves what is locked, and what is set itself.
func TestEnabled(t *testing.T) {
	for _, tt := range []struct {
		set  Set
		name string
		want bool
	}{
		{nil, "SidecarContainers", true},
		{Set{"AllBeta": false}, "SidecarContainers", true},
		{Set{"AllBeta": false}, "CPUManagerPolicyBetaOptions", false},
		{Set{"AllBeta": false, "CPUManagerPolicyBetaOptions": true}, "CPUManagerPolicyBetaOptions", true},
		{Set{"AllAlpha": true}, "CPUManagerPolicyAlphaOptions", true},
		{Set{"AllAlpha": true}, "CPUManagerPolicyBetaOptions", true},
	} {
		if got := tt.set.Enabled(tt.name); got != tt.want {
			t.Errorf("%v: %s is %v", tt.set, tt.name, got)
		}
	}
}
