package containerruntime

import "testing"

// A start that goes well warns of nothing, and a network configuration that
// cannot be used is reported.
func TestExpectedMessages(t *testing.T) {
	for message, want := range map[string]bool{
		"failed to load cni during init, please check CRI plugin status before setting up network for pods":                  true,
		"failed to reload cni configuration after receiving fs change event(WRITE         \"/d/cni/net.d/.knarr-46470766\")": true,
		"failed to reload cni configuration after receiving fs change event(WRITE         \"/d/cni/net.d/10-other.conf\")":   false,
		"PullImage \"knarr.test/hello:1\" failed": false,
	} {
		if got := isExpected(message); got != want {
			t.Errorf("%s: %v", message, got)
		}
	}
}
