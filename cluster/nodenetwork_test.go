package cluster

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"k8s.io/client-go/tools/record"
)

// A kernel that takes no table is told of once, in the log and for as long as
// it lasts in the node's condition, and tried ever more rarely.
func TestNetworkThatCannotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
		defer slog.SetDefault(before)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := &node{}
		var tries atomic.Int32
		refusal := errors.New("socket: protocol not supported")
		done := make(chan bool)
		go func() {
			done <- n.install(ctx, func() error {
				if tries.Add(1) > 30 {
					return nil
				}
				return refusal
			})
		}()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := tries.Load(); n < 10 || n > 20 {
			t.Errorf("%d tries in ten minutes", n)
		}
		if err := n.health.err(); err == nil || err.Error() != "pod network: socket: protocol not supported" {
			t.Errorf("the node's network says %v", err)
		}
		if lines := strings.Count(out.String(), "\n"); lines != 1 {
			t.Errorf("%d lines in the log:\n%s", lines, out.String())
		}
		time.Sleep(time.Hour)
		if !<-done || n.health.err() != nil {
			t.Errorf("after it went well the node's network says %v", n.health.err())
		}
	})
}

// The event fits whatever the firewall's program had to say.
func TestFirewallEvent(t *testing.T) {
	events := record.NewFakeRecorder(2)
	n := &node{opts: &NodeOptions{NodeName: "n"}}
	n.firewallEvent(events, errors.New("install iptables-legacy"))
	n.firewallEvent(events, errors.New(strings.Repeat("é", maxEventText)))
	if got := <-events.Events; got != "Warning FirewallMayDropPodTraffic A firewall of this host may drop what pods send: install iptables-legacy" {
		t.Errorf("%s", got)
	}
	if _, text, _ := strings.Cut(<-events.Events, "Traffic "); len(text) > maxEventText || !utf8.ValidString(text) {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}
