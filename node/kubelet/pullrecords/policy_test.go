package pullrecords

import "testing"

// TestPolicies asks each policy for an image that the kubelet pulled with a secret, for one
// that was loaded, and for what of both is in the list.
func TestPolicies(t *testing.T) {
	allowed := []string{"reg.example/team/*", "reg.example/loaded", "busybox"}
	for _, tt := range []struct {
		policy string
		must   map[string]bool // by image; those not named need not be pulled
	}{
		{"NeverVerify", nil},
		{"NeverVerifyPreloadedImages", map[string]bool{"reg.example/private:1": true, "reg.example/team/private:1": true}},
		{"NeverVerifyAllowlistedImages", map[string]bool{"reg.example/private:1": true, "reg.example/other:1": true, "reg.example/loaded/more:1": true, "docker.io/library/busybox": true}},
		{"AlwaysVerify", map[string]bool{"reg.example/private:1": true, "reg.example/team/private:1": true, "reg.example/loaded:1": true,
			"reg.example/loaded/more:1": true, "reg.example/other:1": true, "busybox:1.36": true, "docker.io/library/busybox": true}},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			s := open(t, t.TempDir())
			s.Policy = Policies[tt.policy](allowed)
			for _, image := range []string{"reg.example/private:1", "reg.example/team/private:1", "reg.example/open:1"} {
				used := Credentials{KubernetesSecrets: []Secret{secret("a", "1")}}
				if image == "reg.example/open:1" {
					used = Credentials{NodePodsAccessible: true}
				}
				ok(t, s.Begin(image))
				ok(t, s.Succeed(image, "id-"+image, used))
			}
			for _, image := range []string{"reg.example/private:1", "reg.example/team/private:1", "reg.example/open:1",
				"reg.example/loaded:1", "reg.example/loaded/more:1", "reg.example/other:1", "busybox:1.36", "docker.io/library/busybox"} {
				if got := s.MustPull(image, "id-"+image, having()); got != tt.must[image] {
					t.Errorf("%s must be pulled by a pod without credentials: %v", image, got)
				}
				if s.MustPull(image, "id-"+image, having(secret("a", "1"))) && image == "reg.example/private:1" {
					t.Errorf("%s must be pulled by the pod it was pulled for", image)
				}
			}
			if s.Public("reg.example/loaded:1", "id-reg.example/loaded:1") == (tt.policy == "AlwaysVerify") || s.Public("reg.example/private:1", "id-reg.example/private:1") {
				t.Error("other nodes get what is not for everybody, or not what is")
			}
		})
	}
}

func TestCheckPattern(t *testing.T) {
	for pattern, right := range map[string]bool{
		"busybox": true, "reg.example:5000/team/app": true, "reg.example/*": true, "reg.example/team/*": true,
		"": false, "*": false, "/*": false, " busybox": false, "reg.example/te*": false, "reg.example/*/app": false,
		"busybox:1": false, "busybox@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": false, "Bad//": false,
	} {
		if err := CheckPattern(pattern); (err == nil) != right {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}
