package kubelet

import "net"

// sortIPs puts the node's first address family first, one address of each.
func (k *Kubelet) sortIPs(ips []string) (out []string) {
	four := len(k.cfg.NodeIPs) == 0 || k.cfg.NodeIPs[0].To4() != nil
	for _, want := range []bool{four, !four} {
		for _, s := range ips {
			if ip := net.ParseIP(s); ip != nil && (ip.To4() != nil) == want {
				out = append(out, ip.String())
				break
			}
		}
	}
	return out
}

// podIPs are the pod's addresses, the node's family first.
func (w *worker) podIPs() []string {
	if w.observed == nil {
		return nil
	}
	for _, s := range w.observed.Sandboxes {
		if s.Ready() {
			return w.k.sortIPs(s.IPs())
		}
	}
	return nil
}

// firstOf is the first address, "" if there is none.
func firstOf(ips []string) string {
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}
