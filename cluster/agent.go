package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/internal/controller"
	"knarr/internal/failover"
	"knarr/internal/run"
	"knarr/internal/version"
)

// An Agent is a node that joins a server on another machine.
type Agent struct {
	opts    AgentOptions
	layout  layout
	began   time.Time
	servers *failover.Dialer
	mu      sync.Mutex // of what is kept of the membership
}

// NewAgent takes options that have been validated.
func NewAgent(o AgentOptions) *Agent {
	return &Agent{opts: o, layout: layout{o.DataDir}, began: time.Now(), servers: failover.New(strings.TrimPrefix(o.Server, "https://"))}
}

// Run joins the server and runs pods until ctx ends. Containers keep running.
// An error is a user's mistake.
func (a *Agent) Run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("knarr agent runs containers and must be root; start it with sudo")
	}
	claim, err := a.layout.dataDirLock(marker{Version: 1, Agent: true}, true)
	if err != nil {
		return err
	}
	defer claim.release()
	socks := newSockets(a.layout)
	socks.connect(ctx)
	before := a.layout.rememberedFamilies().everywhereAddress()
	listener, err := socks.listen(before, a.opts.KubeletPort, "kubelet-port")
	if err != nil {
		claim.abandon()
		return err
	}
	defer func() {
		if listener != nil {
			listener.Close()
		}
	}()
	member, err := a.join(ctx)
	if err == nil && member != nil {
		err = a.opts.belong(member.Facts.ClusterCIDRs)
	}
	if err == nil && member != nil {
		listener, err = a.listenAs(socks, listener, before, member.Facts.ClusterCIDRs.everywhereAddress())
	}
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
		opts: &a.opts.NodeOptions, layout: a.layout, facts: member.Facts, ca: member.pool, clientKey: a.layout.tls(nodeKeyFile), sockets: socks, kubelet: listener,
		began: a.began, podNetwork: make(chan struct{}), leave: a.servers.Leave,
		as: identities{
			kubelet: a.as(member, "kubelet", nodeClientName), proxy: a.as(member, "kube-proxy", "kube-proxy"), dns: a.as(member, "knarr-dns", "dns"),
			storage: a.as(member, "local-path-provisioner", "local-storage"), gateway: a.as(member, "knarr-gateway", "gateway"),
			announcer: a.as(member, "knarr-address-announcer", "address-announcer"),
		},
	}
	if err := n.share(ctx); err != nil {
		return err
	}
	var group run.Group
	for _, c := range n.components() {
		group.Go(c.name, func() { supervise(ctx, c) })
	}
	group.Go("servers", func() {
		supervise(ctx, component{"servers", func(ctx context.Context) error { return a.followServers(ctx, member, n.as.proxy) }})
	})
	group.Go("certificates", func() {
		supervise(ctx, component{"certificates", func(ctx context.Context) error { return a.renewCertificates(ctx, member) }})
	})
	group.Go("watches", func() { <-ctx.Done(); n.watches.Wait() })
	group.Go("settle", func() { settle(ctx) })
	group.Go("hold sockets", func() { socks.hold(ctx, listener) })
	<-ctx.Done()
	socks.letGo() // an orderly end closes the ports at once
	finished := make(chan struct{})
	run.Go("stop", func() { defer close(finished); group.Wait() })
	select {
	case <-finished:
	case <-time.After(stopTime):
		slog.Warn("stopped before everything had ended by itself", "after", stopTime)
	}
	return nil
}

// listenAs listens for the kubelet at another address than before the cluster's families
// were known, if it has to.
func (a *Agent) listenAs(socks *sockets, l net.Listener, before, now string) (net.Listener, error) {
	if now == before {
		return l, nil
	}
	l.Close()
	return socks.listen(now, a.opts.KubeletPort, "kubelet-port")
}

// serverName is a name that every server's certificate bears.
const serverName = "kubernetes.default.svc"

// as reaches a server as the user of one of the node's certificates, for one of
// upstream's programs.
func (a *Agent) as(m *membership, program, name string) *rest.Config {
	return &rest.Config{
		Host: a.opts.Server, QPS: -1, UserAgent: version.UserAgent(program, name),
		Dial:  a.servers.DialContext,
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }, // which would be asked for the server's address
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: serverName,
			CAData:     m.CA,
			// Files, which the library reads again: certificates are renewed meanwhile.
			CertFile: a.layout.tls(name + ".crt"), KeyFile: a.layout.tls(nodeKeyFile),
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
	before := a.remembered()
	switch {
	case before == nil && a.opts.token.secret == "":
		return nil, errNoToken
	case before != nil && a.opts.token.caHash == "":
		a.opts.token.caHash = hashCA(before.CA) // that of the cluster it is a member of
	}
	if err := a.opts.knowsCA(); err != nil {
		return nil, err
	}
	if before != nil {
		a.servers.Set(append(slices.Clone(before.Servers), a.servers.Servers()...))
	}
	for wait, waited := 250*time.Millisecond, time.Duration(0); ; wait = min(2*wait, 10*time.Second) {
		m, err := a.ask(ctx, key)
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err == nil:
			slog.Info("joined", "server", a.opts.Server, "node", a.opts.NodeName, "after", time.Since(a.began).Round(time.Millisecond))
			if before != nil {
				m.Servers = before.Servers
			}
			return m, a.layout.writeMember(m)
		case !errors.Is(err, errUnreachable):
			return nil, err
		case before != nil && a.serves(before, time.Now()):
			slog.Warn("going on as a member from before", "err", err)
			return before, a.layout.writeMember(before)
		}
		if waited += wait; waited == wait || wait >= 4*time.Second {
			slog.Warn("waiting for the server; if it should be there, look at --server", "err", err, "again", wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

var errNoToken = errors.New("--token: must be given to join the cluster of --server; it is in node-token in that server's --data-dir")

// errUnreachable marks what may be mended by waiting.
var errUnreachable = errors.New("not reached")

func unreachable(server string, err error) error {
	return fmt.Errorf("--server %s: %w: %w", server, errUnreachable, err)
}

// joinClient is where the agent asks. One that has been in knows all servers.
func (a *Agent) joinClient() *joinClient {
	d := &joinClient{server: a.opts.Server, token: a.opts.token, anyCA: a.opts.AnyCA}
	if len(a.servers.Servers()) > 1 {
		d.dial, d.name = a.servers.DialContext, serverName
	}
	return d
}

// followServers keeps the list of the servers as the cluster's changes, also for
// the next start.
func (a *Agent) followServers(ctx context.Context, m *membership, as *rest.Config) error {
	client, err := kubernetes.NewForConfig(as)
	if err != nil {
		return err
	}
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(metav1.NamespaceDefault), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", "kubernetes").String()
	}))
	informer := f.Discovery().V1().EndpointSlices().Informer()
	c := &controller.Controller[string]{
		Name:    "servers",
		Sources: []controller.Source[string]{{Informer: informer, Keys: func(metav1.Object) []string { return []string{""} }}},
		Reconcile: func(context.Context, string) (time.Duration, error) {
			for _, o := range informer.GetStore().List() {
				if err := a.noteServers(m, o.(*discoveryv1.EndpointSlice)); err != nil {
					return 0, err
				}
			}
			return 0, nil
		},
	}
	ctx, cancel := context.WithCancel(ctx)
	f.StartWithContext(ctx)
	defer f.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	return c.Run(ctx)
}

// noteServers takes over where the servers are. A list of none is no list.
func (a *Agent) noteServers(m *membership, slice *discoveryv1.EndpointSlice) error {
	servers := serversOf(slice)
	if len(servers) == 0 || slices.Equal(servers, m.Servers) {
		return nil
	}
	if len(servers) == 1 && len(m.Servers) == 0 {
		return nil // the one it joined, maybe by a name or through a gate
	}
	a.servers.Set(servers)
	slog.Info("servers", "at", servers)
	a.mu.Lock()
	defer a.mu.Unlock()
	m.Servers = servers
	return a.layout.writeMember(m)
}

// serversOf are the addresses of the API servers behind a Service. Pure.
func serversOf(slice *discoveryv1.EndpointSlice) (all []string) {
	if len(slice.Ports) == 0 || slice.Ports[0].Port == nil {
		return nil
	}
	port := strconv.Itoa(int(*slice.Ports[0].Port))
	for _, address := range sliceAddresses(slice) {
		all = append(all, net.JoinHostPort(address, port))
	}
	slices.Sort(all)
	return all
}
