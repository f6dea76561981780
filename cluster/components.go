package cluster

import (
	"context"
	"crypto"
	"crypto/x509"
	"net/netip"
	"runtime"

	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/addons/dns"
	"knarr/controlplane/controllermanager"
	"knarr/controlplane/controllermanager/csr"
	"knarr/controlplane/scheduler"
)

type signer = crypto.Signer

const goarch = runtime.GOARCH

var goversion = runtime.Version()

// A component is a part of the cluster that only knows the API.
type component struct {
	name string
	run  func(context.Context) error
}

// components are those this server runs beside etcd and the API server, in no
// particular order: each waits for what it needs. DNS answers on the pod
// network's bridge: without the one there is no other.
func (s *Server) components() []component {
	o := &s.opts
	var run []component
	for _, c := range []struct {
		part string // what --disable calls it
		component
	}{
		{"scheduler", component{"kube-scheduler", s.scheduler}},
		{"controller-manager", component{"kube-controller-manager", s.controllers}},
		{"coredns", component{"dns-announcer", s.announceDNS}},
		{"", component{"servers", s.keepServers}},
	} {
		if !o.disabled(c.part) && !(c.part == "coredns" && o.disabled("network")) {
			run = append(run, c.component)
		}
	}
	if s.node != nil {
		run = append(run, s.node.components()...)
	}
	return run
}

// inside are the components that run in this process.
func (s *Server) inside() (names []string) {
	for _, part := range []string{"scheduler", "controller-manager"} {
		if !s.opts.disabled(part) {
			names = append(names, "kube-"+part)
		}
	}
	return names
}

func (s *Server) scheduler(ctx context.Context) error {
	return inTurns(ctx, s.several(), func(ctx context.Context, elect bool) error {
		sched, err := scheduler.New(scheduler.Config{Kube: s.as("kube-scheduler", "system:kube-scheduler"), LeaderElect: elect, Identity: s.opts.NodeName})
		if err != nil {
			return err
		}
		return sched.Run(ctx)
	})
}

func (s *Server) controllers(ctx context.Context) error {
	return inTurns(ctx, s.several(), func(ctx context.Context, elect bool) error {
		m, err := controllermanager.New(controllermanager.Config{
			Kube: s.as("kube-controller-manager", "system:kube-controller-manager"), ClientFor: s.asController,
			RootCA: s.ca.pem, TokenKey: s.tokenKey, Signers: csr.All(func() (*x509.Certificate, crypto.Signer, error) { return s.ca.cert, s.ca.key, nil }), ClusterCIDRs: []netip.Prefix{s.opts.clusterCIDR},
			LeaderElect: elect, Identity: s.opts.NodeName,
		})
		if err != nil {
			return err
		}
		return m.Run(ctx)
	})
}

// inTurns runs what one server at a time may do: without asking for as long as
// there is one server, then by election. A server's name is who it is in one: it
// runs once, and after a crash it need not wait for itself.
func inTurns(ctx context.Context, several <-chan struct{}, run func(ctx context.Context, elect bool) error) error {
	single, end := context.WithCancel(ctx)
	defer end()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-several:
			end()
		case <-single.Done():
		}
	}()
	defer func() { end(); <-watched }()
	select {
	case <-several:
	default:
		if err := run(single, false); err != nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-several:
		default:
			return nil
		}
	}
	return run(ctx, true)
}

// announceDNS keeps the Service that pods' resolvers point at, and every node's
// server behind it.
func (s *Server) announceDNS(ctx context.Context) error {
	a, err := dns.NewAnnouncer(s.as("knarr", "system:knarr", user.SystemPrivilegedGroup), s.opts.clusterDNS, dnsPort)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
