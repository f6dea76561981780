package cluster

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"knarr/internal/version"
)

// An Agent is a node that joins a server on another machine.
type Agent struct {
	opts   AgentOptions
	layout layout
	began  time.Time
}

// NewAgent takes options that have been validated.
func NewAgent(o AgentOptions) *Agent {
	return &Agent{opts: o, layout: layout{o.DataDir}, began: time.Now()}
}

// Run joins the server and runs pods until ctx ends. Containers keep running.
// An error is a user's mistake.
func (a *Agent) Run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("knarr agent runs containers and must be root; start it with sudo")
	}
	claim, err := a.layout.claim(marker{Version: 1, Agent: true}, true)
	if err != nil {
		return err
	}
	defer claim.release()
	socks := newSockets(a.layout)
	socks.connect()
	listener, err := socks.listen("0.0.0.0", a.opts.KubeletPort, "kubelet-port")
	if err != nil {
		claim.abandon()
		return err
	}
	defer listener.Close()
	member, err := a.join(ctx)
	if err != nil {
		if claim.fresh {
			_ = os.Remove(a.layout.tls("kubelet.key"))
		}
		claim.abandon()
		return err
	}
	if member == nil {
		return nil // told to end while it waited
	}
	n := &node{
		opts: &a.opts.NodeOptions, layout: a.layout, facts: member.Facts, ca: member.pool, sockets: socks, kubelet: listener,
		began: a.began, podNetwork: make(chan struct{}),
		as: identities{
			kubelet: a.as(member, "kubelet-client"), proxy: a.as(member, "kube-proxy"), dns: a.as(member, "dns"),
		},
	}
	var group sync.WaitGroup
	for _, c := range n.components() {
		group.Go(func() { supervise(ctx, c) })
	}
	group.Go(func() { settle(ctx) })
	group.Go(func() { socks.hold(ctx, listener) })
	<-ctx.Done()
	socks.letGo() // an orderly end closes the ports at once
	finished := make(chan struct{})
	go func() { defer close(finished); group.Wait() }()
	select {
	case <-finished:
	case <-time.After(stopTime):
		slog.Warn("stopped before everything had ended by itself", "after", stopTime)
	}
	return nil
}

// as reaches the server as the user of one of the node's certificates.
func (a *Agent) as(m *membership, name string) *rest.Config {
	return &rest.Config{
		Host: a.opts.Server, QPS: -1, UserAgent: "knarr/" + version.Version + " (" + name + ")",
		TLSClientConfig: rest.TLSClientConfig{
			CAData: m.CA, KeyData: m.key,
			CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.Certificates[name]}),
		},
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
			ContentType:        "application/vnd.kubernetes.protobuf",
		},
	}
}

// join makes this machine a member, waiting for a server that is not there yet.
// A member from before begins without it. Nil when ctx ended.
func (a *Agent) join(ctx context.Context) (*membership, error) {
	key, err := nodeKey(a.layout)
	if err != nil {
		return nil, err
	}
	if a.opts.token.caHash == "" {
		slog.Warn("--token names no CA, so whoever answers at --server is believed; node-token in the server's --data-dir names it")
	}
	before := a.remembered(key)
	for wait, said := 250*time.Millisecond, time.Duration(0); ; wait = min(2*wait, 10*time.Second) {
		m, err := a.ask(ctx, key)
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err == nil:
			slog.Info("joined", "server", a.opts.Server, "node", a.opts.NodeName, "after", time.Since(a.began).Round(time.Millisecond))
			return m, a.layout.writeMember(m)
		case !errors.Is(err, errUnreachable):
			return nil, err
		case before != nil:
			slog.Warn("going on as a member from before", "err", err)
			return before, nil
		}
		if said += wait; said == wait || wait >= 4*time.Second {
			slog.Warn("waiting for the server; if it should be there, look at --server", "err", err, "again", wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// errUnreachable marks what may be mended by waiting.
var errUnreachable = errors.New("not reached")

func unreachable(server string, err error) error {
	return fmt.Errorf("--server %s: %w: %w", server, errUnreachable, err)
}
