package quota

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const countServices corev1.ResourceName = "count/services"

var services = Measure{
	Counts: func(n corev1.ResourceName) bool {
		switch n {
		case countServices, corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
			return true
		}
		return false
	},
	Use: serviceUse,
}

// serviceUse counts node ports by what the service asks for: they are given
// out later.
func serviceUse(obj runtime.Object, _ time.Time) corev1.ResourceList {
	spec := &obj.(*corev1.Service).Spec
	ports, balancers := 0, int64(0)
	switch spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = len(spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers, ports = 1, len(spec.Ports)
		if a := spec.AllocateLoadBalancerNodePorts; a != nil && !*a {
			ports = 0
			for _, p := range spec.Ports {
				if p.NodePort != 0 {
					ports++
				}
			}
		}
	}
	return corev1.ResourceList{
		countServices:                        count(1),
		corev1.ResourceServices:              count(1),
		corev1.ResourceServicesNodePorts:     count(int64(ports)),
		corev1.ResourceServicesLoadBalancers: count(balancers),
	}
}
