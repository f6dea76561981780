package network

import (
	"encoding/json"
	"iter"
	"testing"
)

// A configuration is refused, or all it says can be used: what it names has
// room, and stays where it belongs.
func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","bridge":"b","table":"t","stateDir":"/s","podCIDRs":["10.1.0.0/24","fd00::/64"],"mtu":1400,"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"TCP","hostIP":"::1"}]}}`), "abc", "eth0")
	f.Add([]byte(`{"podCIDRs":["10.1.0.0/31","0.0.0.0/0","::/0","10.1.0.7/24"],"bridge":"a/b"}`), "..", "..")
	f.Add([]byte(`{"prevResult":{"ips":[{"address":"x"}]}}`), "", "")
	f.Fuzz(func(t *testing.T, data []byte, id, ifName string) {
		_ = validateArgs("ADD", id, ifName, "n")
		c := &Conf{}
		if json.Unmarshal(data, c) != nil || c.Validate() != nil {
			return
		}
		for _, p := range c.PodCIDRs {
			last := lastAddr(p)
			if !p.Contains(gateway(p)) || !p.Contains(last) || !gateway(p).Less(last) {
				t.Fatalf("%s: gateway %s, last %s", p, gateway(p), last)
			}
			next, stop := iter.Pull(candidates(p, p.Addr()))
			if a, ok := next(); !ok || !p.Contains(a) || a == gateway(p) {
				t.Fatalf("%s: %s, %t is free", p, a, ok)
			}
			stop()
		}
	})
}
