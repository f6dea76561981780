package registry

import corev1 "k8s.io/api/core/v1"

var componentStatuses = &Kind[*corev1.ComponentStatus]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ComponentStatus"),
	Plural:           "componentstatuses",
	Short:            []string{"cs"},
	Cluster:          true,
	Virtual:          true,
	Verbs:            []string{"get", "list"},

	Columns: []Column[*corev1.ComponentStatus]{
		nameColumn[*corev1.ComponentStatus](),
		column("Status", "string", "Status of the component conditions", 0, func(c *corev1.ComponentStatus) any {
			switch h := healthOf(c); {
			case h.Type == "":
				return "Unknown"
			case h.Status == corev1.ConditionTrue:
				return "Healthy"
			}
			return "Unhealthy"
		}),
		column("Message", "string", "Message of the component conditions", 0,
			func(c *corev1.ComponentStatus) any { return healthOf(c).Message }),
		column("Error", "string", "Error of the component conditions", 0,
			func(c *corev1.ComponentStatus) any { return healthOf(c).Error }),
	},
}

func healthOf(c *corev1.ComponentStatus) (h corev1.ComponentCondition) {
	for _, h := range c.Conditions {
		if h.Type == corev1.ComponentHealthy {
			return h
		}
	}
	return h
}
