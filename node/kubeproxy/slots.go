package kubeproxy

import "net/netip"

// place puts the wanted endpoints into slots 0 to n-1 with few changes: who is
// there stays, newcomers fill the gaps, and the last ones move into those that
// remain. So a change of one endpoint is one or two elements of the kernel's
// map, whatever the number of endpoints.
func place(was, want []netip.AddrPort) []netip.AddrPort {
	missing := make(map[netip.AddrPort]bool, len(want))
	for _, ep := range want {
		missing[ep] = true
	}
	slots := make([]netip.AddrPort, max(len(was), len(want)))
	var gaps []int
	for i := range slots {
		if i < len(was) && missing[was[i]] {
			slots[i] = was[i]
			delete(missing, was[i])
		} else {
			gaps = append(gaps, i)
		}
	}
	for _, ep := range want { // in order, so that the outcome is always the same
		if missing[ep] {
			slots[gaps[0]], gaps = ep, gaps[1:]
		}
	}
	last := len(slots) - 1
	for _, gap := range gaps {
		for last >= len(want) && !slots[last].IsValid() {
			last--
		}
		if gap >= len(want) {
			break
		}
		slots[gap], slots[last] = slots[last], netip.AddrPort{}
	}
	return slots[:len(want)]
}
