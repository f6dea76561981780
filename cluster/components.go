package cluster

import (
	"context"
	"crypto"
	"crypto/x509"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	cloudprovider "k8s.io/cloud-provider"

	"knarr/addons/dns"
	"knarr/addons/gateway"
	"knarr/addons/loadbalancer"
	"knarr/addons/localstorage"
	"knarr/addons/metrics"
	"knarr/controlplane/cloudcontrollermanager"
	"knarr/controlplane/cloudcontrollermanager/baremetal"
	"knarr/controlplane/controllermanager"
	"knarr/controlplane/controllermanager/bootstraptoken"
	"knarr/controlplane/controllermanager/csr"
	"knarr/controlplane/scheduler"
	"knarr/internal/keypair"
	"knarr/internal/run"
)

// A component is a part of the cluster that only knows the API.
type component struct {
	name string
	run  func(context.Context) error
}

// components are those this server runs beside etcd and the API server, in no
// particular order: each waits for what it needs.
func (s *Server) components() []component {
	o := &s.opts
	var run []component
	for _, c := range []struct {
		part string // what --disable calls it
		component
	}{
		{"scheduler", component{"kube-scheduler", s.scheduler}},
		{"controller-manager", component{"kube-controller-manager", s.controllers}},
		{cloudControllers, component{"cloud-controller-manager", s.cloudControllers}},
		{"coredns", component{"dns-announcer", s.publishDNS}},
		{"", component{"metrics-server", s.measure}},
		{"", component{"storage-class", s.publishStorage}},
		{"", component{"runtime-classes", s.publishRuntimeClasses}},
		{serviceLB, component{"service-lb", s.balance}},
		{"", component{"gateway-status", s.publishGateway}},
		{"", component{"servers", s.keepServers}},
		{"", component{"node-keys", s.bindNodeKeys}},
		{"", component{"cluster-info", s.publishClusterInfo}},
		{"", component{"certificates", s.renewCertificates}},
	} {
		if !o.disabled(c.part) {
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
	return switchToElection(ctx, s.several(), func(ctx context.Context, elect bool) error {
		cfg := scheduler.Config{Kube: s.as("kube-scheduler", "system:kube-scheduler"), LeaderElect: elect, Identity: s.opts.NodeName}
		s.opts.scheduler.Apply(&cfg)
		sched, err := scheduler.New(cfg)
		if err != nil {
			return err
		}
		return sched.Run(ctx)
	})
}

func (s *Server) controllers(ctx context.Context) error {
	return switchToElection(ctx, s.several(), func(ctx context.Context, elect bool) error {
		cfg := controllermanager.Config{
			Kube: s.as("kube-controller-manager", "system:kube-controller-manager"), ClientFor: s.asController,
			RootCA: s.ca.pem, TokenKey: s.tokenKey, Signers: csr.All(func() (*x509.Certificate, crypto.Signer, error) { return s.ca.cert, s.ca.key, nil }), ClusterCIDRs: s.opts.clusterCIDRs, ServiceCIDRs: s.opts.serviceCIDRs,
			NodeCIDRMaskSizeIPv4: s.opts.NodeMaskIPv4, NodeCIDRMaskSizeIPv6: s.opts.NodeMaskIPv6,
			LeaderElect: elect, Identity: s.opts.NodeName,
			Features: s.opts.api.Features(),
		}
		// The API server believes bootstrap tokens, as in a cluster of kubeadm's: they end when
		// they say so.
		s.opts.controllers.Apply(&cfg, bootstraptoken.Signer, bootstraptoken.Cleaner)
		m, err := controllermanager.New(cfg)
		if err != nil {
			return err
		}
		return m.Run(ctx)
	})
}

// cloudControllers initialise nodes by the file of machines that this server has.
func (s *Server) cloudControllers(ctx context.Context) error {
	return switchToElection(ctx, s.several(), func(ctx context.Context, elect bool) error {
		m, err := cloudcontrollermanager.New(cloudcontrollermanager.Config{
			Kube:        s.as("cloud-controller-manager", "system:cloud-controller-manager"),
			ClientFor:   func(account string) *rest.Config { return s.asAccount("cloud-controller-manager", account) },
			Cloud:       func() (cloudprovider.Interface, error) { return baremetal.Open(s.opts.CloudConfig) },
			LeaderElect: elect, Identity: s.opts.NodeName,
		})
		if err != nil {
			return err
		}
		return m.Run(ctx)
	})
}

// switchToElection runs what one server at a time may do: without asking for as long as
// there is one server, then by election. A server's name is who it is in one: it
// runs once, and after a crash it need not wait for itself.
func switchToElection(ctx context.Context, several <-chan struct{}, work func(ctx context.Context, elect bool) error) error {
	single, end := context.WithCancel(ctx)
	defer end()
	watched := make(chan struct{})
	run.Go("wait for further servers", func() {
		defer close(watched)
		select {
		case <-several:
			end()
		case <-single.Done():
		}
	})
	defer func() { end(); <-watched }()
	select {
	case <-several:
	default:
		if err := work(single, false); err != nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-several:
		default:
			return nil
		}
	}
	return work(ctx, true)
}

// publishDNS keeps the Service that pods' resolvers point at, and every node's
// server behind it.
func (s *Server) publishDNS(ctx context.Context) error {
	a, err := dns.NewPublisher(s.as("knarr", "system:knarr", user.SystemPrivilegedGroup), s.opts.clusterDNS, dnsPort, s.facts().dnsLocation())
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// measure serves metrics.k8s.io. In a cluster that does not run it, it removes
// what an earlier start has registered.
func (s *Server) measure(ctx context.Context) error {
	if !s.opts.disabled("metrics-server") {
		return s.metrics.Run(ctx)
	}
	if err := metrics.Withdraw(ctx, s.registrar()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// publishStorage keeps the class by which claims get volumes of nodes' disks, and looks
// after claims and volumes of nodes that are gone. In a
// cluster that does not run it, it removes what an earlier start has made.
func (s *Server) publishStorage(ctx context.Context) error {
	publisher := func(elect bool) (*localstorage.Publisher, error) {
		return localstorage.NewPublisher(localstorage.PublisherConfig{Kube: s.registrar(), LeaderElect: elect, Identity: s.opts.NodeName})
	}
	if s.opts.disabled("local-storage") {
		p, err := publisher(false)
		if err != nil {
			return err
		}
		if err := p.Withdraw(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	return switchToElection(ctx, s.several(), func(ctx context.Context, elect bool) error {
		p, err := publisher(elect)
		if err != nil {
			return err
		}
		return p.Run(ctx)
	})
}

// balance gives Services of type LoadBalancer the nodes' addresses. Where a vendor's
// controllers run, Services without a class are theirs.
func (s *Server) balance(ctx context.Context) error {
	return switchToElection(ctx, s.several(), func(ctx context.Context, elect bool) error {
		c, err := loadbalancer.New(loadbalancer.Config{
			Kube: s.asAccount("service-lb", loadbalancer.ServiceAccount), Registrar: s.registrar(),
			LeaderElect: elect, Identity: s.opts.NodeName, ClassOnly: s.opts.CloudProvider == externalCloud,
			Ports: map[int32]string{int32(s.opts.HTTPSListenPort): "the API server", 2379: "etcd", 2380: "etcd"},
		})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	})
}

// publishGateway keeps the class of Ingresses, their addresses and what there is to say of
// them. In a cluster that serves none, it removes what an earlier start has made.
func (s *Server) publishGateway(ctx context.Context) error {
	if s.opts.disabled(ingressPart) {
		if err := gateway.Withdraw(ctx, s.registrar()); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	return switchToElection(ctx, s.several(), func(ctx context.Context, elect bool) error {
		st, err := gateway.NewStatus(gateway.StatusConfig{
			Kube: s.asAccount("gateway", gateway.ServiceAccount), Registrar: s.registrar(), Domain: s.opts.ClusterDomain,
			LeaderElect: elect, Identity: s.opts.NodeName, NodeAddresses: s.opts.disabled(serviceLB),
			Inside: append(slices.Clone(s.opts.clusterCIDRs), s.opts.serviceCIDRs...), ACME: s.opts.acme,
		})
		if err != nil {
			return err
		}
		return st.Run(ctx)
	})
}

// registrar writes what metrics-server is registered by, the storage class, cluster-info, and roles.
func (s *Server) registrar() *rest.Config {
	return s.as("knarr", "system:knarr", user.SystemPrivilegedGroup)
}

// newMetrics makes the metrics server. It reaches the API server and kubelets as
// its service account.
func (s *Server) newMetrics(client *keypair.File) (err error) {
	kubelets := sync.OnceValue(func() func(context.Context, string) (*url.URL, http.RoundTripper, error) {
		return s.api.KubeletsAs(client)
	})
	s.metrics, err = metrics.New(metrics.Config{
		Kube:      s.as("metrics-server", metricsUser, serviceaccount.MakeGroupNames(metrics.Namespace)...),
		Registrar: s.registrar(),
		Kubelet: func(ctx context.Context, node string) (*url.URL, http.RoundTripper, error) {
			return kubelets()(ctx, node)
		},
	})
	return err
}

var metricsUser = serviceaccount.MakeUsername(metrics.Namespace, metrics.ServiceAccount)
