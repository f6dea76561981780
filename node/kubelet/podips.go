package kubelet

import (
	"net"
	"slices"

	"knarr/node/kubelet/runtimestate"
)

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

// shownIPs are the addresses that the status shows of a pod that showed these before: those of
// the newest sandbox; without one that is ready those from before, for as long as the runtime
// holds anything of the pod. A pod that gets another sandbox, or has ended, is not without an
// address meanwhile.
func shownIPs(v *runtimestate.Pod, before []string) []string {
	if s, ok := v.ReadySandbox(); ok && len(s.IPs()) > 0 {
		return s.IPs()
	}
	if slices.ContainsFunc(v.Sandboxes, runtimestate.Sandbox.Ready) || len(v.Sandboxes)+len(v.Containers) == 0 {
		return nil
	}
	return before
}

// firstOf is the first address, "" if there is none.
func firstOf(ips []string) string {
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}
