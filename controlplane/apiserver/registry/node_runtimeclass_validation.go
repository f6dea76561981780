package registry

import (
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateRuntimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	var f faults
	if c.Handler == "" {
		f.required(field.NewPath("handler"), "")
	} else {
		f.add(dnsLabel(c.Handler, field.NewPath("handler")))
	}
	if c.Overhead != nil {
		f.add(validateResources(&corev1.ResourceRequirements{Limits: c.Overhead.PodFixed}, containerResourceName, nil, field.NewPath("overhead")))
	}
	if s := c.Scheduling; s != nil {
		at := field.NewPath("scheduling")
		f.add(metavalidation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector")))
		f.add(ValidateTolerations(s.Tolerations, at.Child("tolerations")))
		seen := map[corev1.Toleration]bool{}
		for i, t := range s.Tolerations {
			key := corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
			if seen[key] {
				f.duplicate(at.Child("tolerations").Index(i), t)
			}
			seen[key] = true
		}
	}
	return f.list
}
