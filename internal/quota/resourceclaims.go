package quota

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

const countResourceClaims corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// resourceClaims count themselves, and the devices of each class that they may get.
var resourceClaims = Measure{
	Counts: func(n corev1.ResourceName) bool {
		return n == countResourceClaims || strings.HasSuffix(string(n), corev1.ResourceClaimsPerClass)
	},
	Use: resourceClaimUse,
}

// resourceClaimUse counts the devices that a claim asks for. Of alternatives, of which
// it gets one, each class counts with the most that one of them asks for.
func resourceClaimUse(obj runtime.Object, _ time.Time) corev1.ResourceList {
	use := corev1.ResourceList{countResourceClaims: count(1)}
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return use
	}
	for _, request := range claim.Spec.Devices.Requests {
		most := map[string]resource.Quantity{}
		if e := request.Exactly; e != nil {
			most[e.DeviceClassName] = devices(e.AllocationMode, e.Count)
		}
		for _, s := range request.FirstAvailable {
			if n, have := devices(s.AllocationMode, s.Count), most[s.DeviceClassName]; n.Cmp(have) > 0 {
				most[s.DeviceClassName] = n
			}
		}
		for class, n := range most {
			name := corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
			sum := use[name]
			sum.Add(n)
			use[name] = sum
		}
	}
	return use
}

// devices is how many devices a request may get: as many as a claim can have at most
// where it asks for all there are.
func devices(mode resourcev1.DeviceAllocationMode, exact int64) resource.Quantity {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount:
		return count(exact)
	case resourcev1.DeviceAllocationModeAll:
		return count(resourcev1.AllocationResultsMaxSize)
	}
	return count(0)
}
