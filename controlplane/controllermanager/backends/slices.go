package backends

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// PortsKey is equal for equal ports in any order.
func PortsKey(ports []discoveryv1.EndpointPort) string {
	one := make([]string, 0, len(ports))
	for _, p := range ports {
		one = append(one, fmt.Sprintf("%s/%d/%s/%s", ptr.Deref(p.Name, ""), ptr.Deref(p.Port, 0), ptr.Deref(p.Protocol, ""), ptr.Deref(p.AppProtocol, "")))
	}
	slices.Sort(one)
	return strings.Join(one, ",")
}
