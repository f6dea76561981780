package kubeproxy

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
)

// Somebody deletes the table, or empties it: the rules are there again without a
// Service that changes, and long before the proxy would look by itself.
func TestRulesAreRepaired(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	y, _ := fedSyncer(t, k)
	y.put(t, 0, service("web", "10.43.0.7", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}), "10.1.0.1")
	if err := y.sync(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	in := sameNamespace(t)
	wg.Go(func() { in(func() { y.proxy.keep(ctx, y) }) })
	for _, c := range []struct {
		name string
		do   func(*nftables.Conn, *nftables.Table)
	}{
		{"flush the ruleset", func(c *nftables.Conn, _ *nftables.Table) { c.FlushRuleset() }},
		{"flush the table", (*nftables.Conn).FlushTable},
		{"delete the table", (*nftables.Conn).DelTable},
	} {
		if _, err := ask("10.43.0.7:80"); err != nil {
			t.Fatalf("before: %v", err)
		}
		conn, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		c.do(conn, &nftables.Table{Name: "knarr-test", Family: nftables.TableFamilyIPv4})
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for {
			if _, err = ask("10.43.0.7:80"); err == nil {
				break
			}
			if time.Since(began) > lookAtRules/2 {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		t.Logf("%s: repaired within %v", c.name, time.Since(began))
	}
}
