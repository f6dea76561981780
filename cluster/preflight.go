package cluster

import (
	"errors"
	"net"
	"os"
)

// preflight finds what would stop the cluster later, while nothing has been
// made yet. Every error names the cause and the cure.
func (s *Server) preflight() (err error) {
	o := &s.opts
	if os.Geteuid() != 0 && !o.DisableAgent {
		return errors.New("knarr server runs containers and must be root; start it with sudo, or with --disable-agent for a control plane alone")
	}
	s.claim, err = s.layout.claim(marker{Version: 1, ClusterCIDR: o.clusterCIDR.String(), ServiceCIDR: o.serviceCIDR.String(), Datastore: o.datastore.kind()}, !o.DisableAgent)
	if err != nil {
		s.release()
		return err
	}
	s.sockets.connect()
	if s.listener, err = s.sockets.listen(o.BindAddress, o.HTTPSListenPort, "https-listen-port"); err == nil && !o.DisableAgent {
		s.kubelet, err = s.sockets.listen("0.0.0.0", o.KubeletPort, "kubelet-port")
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
	for _, l := range []net.Listener{s.listener, s.kubelet, s.local} {
		if l != nil {
			l.Close()
		}
	}
	s.claim.release()
}
