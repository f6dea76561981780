package network

import (
	"testing"
	"time"

	"github.com/google/nftables"
)

// TestNewPods: a pod's addresses are in the sets with its UID before it has a
// link; those of one that had an address before are replaced. Without a table a
// pod is attached all the same.
func TestNewPods(t *testing.T) {
	w := newWorld(t)
	w.conf.NewPods = &NewPods{Table: "policy-test", IPv4: "first", IPv6: "second"}
	w.conf.podUID = podUID("IgnoreUnknown=1;K8S_POD_NAMESPACE=x;K8S_POD_UID=uid-1;K8S_POD_NAME=a")
	_, a4, a6 := w.add(t, "aaaa")
	must(t, w.node.do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := c.AddTable(tableOf("policy-test"))
		for name, key := range map[string]nftables.SetDatatype{"first": nftables.TypeIPAddr, "second": nftables.TypeIP6Addr} {
			if err := c.AddSet(&nftables.Set{Table: table, Name: name, KeyType: key, HasTimeout: true, Timeout: time.Minute}, nil); err != nil {
				return err
			}
		}
		return c.Flush()
	}))
	for _, uid := range []string{"uid-2", "uid-3"} {
		w.conf.podUID = uid
		var a *Attachment
		must(t, w.node.do(func() (err error) {
			a, err = loadAttachment(w.conf.StateDir, key("aaaa", "eth0"))
			if err == nil {
				err = closeNew(&w.conf, a)
			}
			return err
		}))
		must(t, w.node.do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			for _, addr := range a.Addrs {
				list, err := c.GetSetElements(w.conf.NewPods.set(addr))
				if err != nil {
					return err
				}
				if len(list) != 1 || string(list[0].Key) != string(addr.AsSlice()) || list[0].Comment != uid {
					t.Errorf("%s or %s of %s: %+v", a4, a6, uid, list)
				}
			}
			return nil
		}))
	}
	if podUID("K8S_POD_NAME=a") != "" {
		t.Error("a UID of nobody")
	}
}
