package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/watchcache"
)

// Each API server keeps a key in the store under a lease, which expires soon after
// the server has ended; the Service kubernetes leads to the servers whose key is
// there. Layout and times are upstream's, so that its API servers count too.
const (
	leasePrefix         = watchcache.Root + "masterleases/"
	leaseTTL            = 15 * time.Second
	leaseRenewal        = 10 * time.Second
	leaseRetry          = 500 * time.Millisecond
	leaseReleaseTimeout = 500 * time.Millisecond // of an orderly end
)

// leaseValue is what is stored under the key of a server: its address in the form
// of Endpoints.
func leaseValue(addr netip.AddrPort) ([]byte, error) {
	e := &corev1.Endpoints{Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: addr.Addr().String()}},
		Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(addr.Port()), Protocol: corev1.ProtocolTCP}},
	}}}
	raw, err := e.Marshal()
	if err != nil {
		return nil, err
	}
	body, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}, Raw: raw}).Marshal()
	return append([]byte("k8s\x00"), body...), err
}

// renewLease puts this server's key, with a new lease.
func (s *Server) renewLease(ctx context.Context) error {
	key := leasePrefix + s.cfg.Advertise.Addr().String()
	value, err := leaseValue(s.cfg.Advertise)
	if err != nil {
		return err
	}
	for range 3 {
		have, _, err := s.cfg.Store.Get(ctx, key)
		if err != nil {
			return err
		}
		var expect int64
		if have != nil {
			expect = have.Revision
		}
		if _, _, ok, err := s.cfg.Store.Put(ctx, key, value, expect, leaseTTL); err != nil || ok {
			return err
		}
	}
	return errors.New("lost every race for the key of this server")
}

// liveServers are the addresses of the servers whose lease has not expired.
func (s *Server) liveServers(ctx context.Context) ([]netip.Addr, error) {
	kvs, _, _, err := s.cfg.Store.List(ctx, leasePrefix, "", 0, 0)
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for _, kv := range kvs {
		if a, err := netip.ParseAddr(strings.TrimPrefix(kv.Key, leasePrefix)); err == nil {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, nil
}

// keepLease renews this server's key, and points the Service kubernetes at all
// servers whenever one comes or goes, until ctx ends.
func (s *Server) keepLease(ctx context.Context) {
	if !s.cfg.Advertise.IsValid() {
		return
	}
	defer s.releaseLease(context.WithoutCancel(ctx))
	renew := time.NewTimer(0)
	defer renew.Stop()
	var changes <-chan storage.Batch
	lastErr := "" // the error of a store in trouble is logged once
	for {
		if changes == nil {
			rev, err := s.cfg.Store.Revision(ctx)
			if err == nil {
				changes, err = s.cfg.Store.Watch(ctx, leasePrefix, rev)
			}
			if err != nil {
				slog.WarnContext(ctx, "watch the API servers", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			next := leaseRenewal
			if err := errors.Join(s.renewLease(ctx), s.updateKubernetesService(ctx)); err != nil && ctx.Err() == nil {
				if err.Error() != lastErr {
					lastErr = err.Error()
					slog.WarnContext(ctx, "renew the lease of this API server", "err", err)
				}
				next = leaseRetry
			} else {
				lastErr = ""
			}
			renew.Reset(next)
		case b, ok := <-changes:
			if !ok || b.Err != nil {
				changes = nil
				renew.Reset(leaseRetry)
			}
			if joined, left := membershipChanges(b.Events); !joined && !left {
				continue
			}
			if err := s.updateKubernetesService(ctx); err != nil && ctx.Err() == nil {
				renew.Reset(leaseRetry)
			}
		}
	}
}

// membershipChanges reports whether servers came or went, and did not only renew. Pure.
func membershipChanges(events []storage.Event) (joined, left bool) {
	for _, e := range events {
		joined = joined || !e.Deleted && e.Created == e.Revision
		left = left || e.Deleted
	}
	return joined, left
}

// releaseLease deletes this server's key. The last server stays in the Service:
// there is no other to lead to.
func (s *Server) releaseLease(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaseReleaseTimeout)
	defer cancel()
	all, err := s.liveServers(ctx)
	if err != nil || len(all) < 2 {
		return
	}
	key := leasePrefix + s.cfg.Advertise.Addr().String()
	if have, _, err := s.cfg.Store.Get(ctx, key); err == nil && have != nil {
		if _, _, ok, err := s.cfg.Store.Delete(ctx, key, have.Revision); err == nil && ok {
			_ = s.updateKubernetesService(ctx) // the others do it too
		}
	}
}

// updateKubernetesService makes the Service kubernetes lead to the live servers.
func (s *Server) updateKubernetesService(ctx context.Context) error {
	all, err := s.liveServers(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	for _, o := range s.kubernetesEndpoints(all) {
		if err := s.ensure(ctx, o); err != nil {
			return fmt.Errorf("point the Service kubernetes at %v: %w", all, err)
		}
	}
	return nil
}

// kubernetesEndpoints are those of the Service kubernetes: the servers at
// addresses of this one's family, which share its port.
func (s *Server) kubernetesEndpoints(servers []netip.Addr) []registry.Object {
	const name = "kubernetes"
	port, is6 := int32(s.cfg.Advertise.Port()), s.cfg.Advertise.Addr().Is6()
	addressType := discoveryv1.AddressTypeIPv4
	if is6 {
		addressType = discoveryv1.AddressTypeIPv6
	}
	var addresses []corev1.EndpointAddress
	var endpoints []discoveryv1.Endpoint
	for _, a := range servers {
		if a.Is6() == is6 {
			addresses = append(addresses, corev1.EndpointAddress{IP: a.String()})
			endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
	}
	return []registry.Object{
		&corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}},
			Subsets: []corev1.EndpointSubset{{
				Addresses: addresses,
				Ports:     []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}},
			}},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: addressType,
			Endpoints:   endpoints,
			Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(port), Protocol: new(corev1.ProtocolTCP)}},
		},
	}
}
