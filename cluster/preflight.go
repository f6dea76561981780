package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// preflight finds what would stop the cluster later, while nothing has been
// made yet. Every error names the cause and the cure.
func (s *Server) preflight(ctx context.Context) (err error) {
	o := &s.opts
	if os.Geteuid() != 0 && !o.DisableAgent {
		return errors.New("knarr server runs containers and must be root; start it with sudo, or with --disable-agent for a control plane alone")
	}
	if o.foreign != nil {
		return o.foreign
	}
	s.claim, err = s.layout.dataDirLock(marker{Version: 1, ClusterCIDR: o.clusterCIDRs.String(), ServiceCIDR: o.serviceCIDRs.String(), Datastore: o.datastore.kind()}, !o.DisableAgent)
	if err != nil {
		s.release()
		return err
	}
	if s.claim.fresh && !o.DisableAgent && o.Server == "" && !o.disabled("network") {
		if err := s.layout.besideOthers(o.clusterCIDRs); err != nil {
			s.release()
			s.claim.abandon()
			return err
		}
	}
	have := o.settings()
	have["disable-agent"] = strconv.FormatBool(o.DisableAgent)
	if err = have.write(s.layout); err != nil {
		s.release()
		s.claim.abandon()
		return err
	}
	s.sockets.connect(ctx)
	if s.listener, err = s.sockets.listen(o.bindAddress(), o.HTTPSListenPort, "https-listen-port"); err == nil && !o.DisableAgent {
		s.kubelet, err = s.sockets.listen(o.clusterCIDRs.everywhereAddress(), o.KubeletPort, "kubelet-port")
	}
	if err != nil {
		s.release()
		s.claim.abandon()
		return err
	}
	return nil
}

// release gives back what preflight took.
func (s *Server) release() {
	for _, l := range []net.Listener{s.listener, s.kubelet} {
		if l != nil {
			l.Close()
		}
	}
	s.local.Close()
	s.claim.release()
}

// besideOthers finds the pod network of another cluster of this host that a new
// one would share addresses with.
func (l layout) besideOthers(pods ranges) error {
	all, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list network links: %w", err)
	}
	links := map[string][]net.Addr{}
	for _, i := range all {
		if !strings.HasPrefix(i.Name, "knarr0") || i.Name == l.bridge() {
			continue
		}
		if links[i.Name], err = i.Addrs(); err != nil {
			return fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
	}
	return overlap(pods, links)
}

// overlap finds an address of other clusters' bridges in a range of pods. Pure.
func overlap(pods ranges, links map[string][]net.Addr) error {
	for _, name := range slices.Sorted(maps.Keys(links)) {
		for _, a := range links[name] {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			if mine, theirs, found := pods.overlap(ranges{p}); found {
				return fmt.Errorf("--cluster-cidr %s: another cluster on this machine has pods at %s (link %s); take it down, or give this one a --cluster-cidr and a --service-cidr of its own", mine, theirs.Masked(), name)
			}
		}
	}
	return nil
}
