package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
	"knarr/internal/run"
)

// What marks the Node of a server. The finalizer keeps a Node that is deleted
// until its member of etcd is removed.
const (
	serverLabel     = "node-role.kubernetes.io/control-plane"
	serverFinalizer = "knarr.dev/etcd-member"
)

// keepServers marks this server's Node, removes from etcd the members whose
// Nodes are deleted, and writes down where the other servers are.
func (s *Server) keepServers(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.as("knarr", "system:knarr", user.SystemPrivilegedGroup))
	if err != nil {
		return err
	}
	var group run.Group
	defer group.Wait()
	group.Go("mark the node", func() { s.markNode(ctx, client) })
	select {
	case <-s.several():
	case <-ctx.Done():
		return nil
	}
	nodes := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = serverLabel }))
	services := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(metav1.NamespaceDefault), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", "kubernetes").String()
	}))
	byName := nodes.Core().V1().Nodes().Informer()
	endpoints := services.Discovery().V1().EndpointSlices().Informer()
	c := &controller.Controller[string]{
		Name: "servers",
		Sources: []controller.Source[string]{
			{Informer: byName, Keys: func(o metav1.Object) []string { return []string{o.GetName(), ""} }},
			{Informer: endpoints, Keys: func(metav1.Object) []string { return []string{""} }},
		},
		Reconcile: func(ctx context.Context, name string) (time.Duration, error) {
			if name == "" {
				return 0, s.noteServers(ctx, endpoints.GetStore())
			}
			o, found, err := byName.GetStore().GetByKey(name)
			if err != nil || !found {
				return 0, err
			}
			return s.serverNode(ctx, client, o.(*corev1.Node))
		},
	}
	ctx, cancel := context.WithCancel(ctx)
	for _, f := range []informers.SharedInformerFactory{nodes, services} {
		f.StartWithContext(ctx)
		defer f.Shutdown()
	}
	defer cancel() // before Shutdown, which waits for the informers
	return c.Run(ctx)
}

// markNode says on this server's Node what it is, once there is one.
func (s *Server) markNode(ctx context.Context, client kubernetes.Interface) {
	if s.opts.DisableAgent {
		return
	}
	for {
		me, err := waitForNode(ctx, client, s.opts.NodeName, func(n *corev1.Node) bool { return true })
		if err == nil && me != nil {
			if _, marked := me.Labels[serverLabel]; marked {
				return
			}
			patch := []byte(`{"metadata":{"labels":{"` + serverLabel + `":"true"}}}`)
			_, err = client.CoreV1().Nodes().Patch(ctx, me.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		slog.WarnContext(ctx, "mark this server's node", "err", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// A removal that another server is to make is looked at again soon, one that was
// refused later: servers may come back.
const (
	removalSoon  = time.Second
	removalLater = 5 * time.Second
)

// serverNode does what the Node of a server asks for.
func (s *Server) serverNode(ctx context.Context, client kubernetes.Interface, n *corev1.Node) (time.Duration, error) {
	has, mine := slices.Contains(n.Finalizers, serverFinalizer), n.Name == s.opts.NodeName
	switch {
	case n.DeletionTimestamp == nil && mine && !has:
		return 0, setFinalizers(ctx, client, n, append(slices.Clone(n.Finalizers), serverFinalizer))
	case n.DeletionTimestamp == nil || !has:
		return 0, nil
	}
	switch {
	case mine: // the leader does it, which this one is no more: who goes cannot write that it has gone
		all, err := s.member.Peers(ctx)
		if err == nil && len(all) > 1 {
			err = s.member.Yield()
		}
		if err != nil || len(all) > 1 {
			return removalLater, err
		}
	case !s.member.Leads():
		return removalSoon, nil
	default:
		if err := s.member.Remove(ctx, n.Name); err != nil {
			slog.WarnContext(ctx, "remove a server", "server", n.Name, "err", err)
			return removalLater, nil
		}
	}
	rest := slices.DeleteFunc(slices.Clone(n.Finalizers), func(f string) bool { return f == serverFinalizer })
	slog.InfoContext(ctx, "server removed", "server", n.Name)
	return 0, setFinalizers(ctx, client, n, rest)
}

func setFinalizers(ctx context.Context, client kubernetes.Interface, n *corev1.Node, want []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": want, "resourceVersion": n.ResourceVersion}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsConflict(err) { // somebody wrote it; that will be seen
		return nil
	}
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// noteServers writes down how many servers there are and where, and says what
// that means.
func (s *Server) noteServers(ctx context.Context, endpoints cache.Store) error {
	all, err := s.member.Peers(ctx)
	if err != nil {
		return err
	}
	voters := 0
	for _, p := range all {
		if !p.Learner {
			voters++
		}
	}
	var urls []string
	port := strconv.Itoa(s.opts.HTTPSListenPort)
	for _, o := range endpoints.List() {
		for _, a := range sliceAddresses(o.(*discoveryv1.EndpointSlice)) {
			if a != s.opts.advertise.String() {
				urls = append(urls, "https://"+net.JoinHostPort(a, port))
			}
		}
	}
	slices.Sort(urls)
	if s.voters != voters && voters == 2 {
		slog.WarnContext(ctx, "with two servers, the loss of either stops all writes; a third makes the loss of any one harmless")
	}
	if s.voters != voters {
		slog.InfoContext(ctx, "servers", "count", voters)
	}
	s.voters = voters
	err = s.remember(func(p *peerState) {
		p.Several = len(all) > 1 || s.opts.ClusterInit
		if len(urls) > 0 || len(all) == 1 { // those that are not there now may come back
			p.Servers = urls
		}
	})
	if err != nil {
		return fmt.Errorf("write down the other servers: %w", err)
	}
	return nil
}
