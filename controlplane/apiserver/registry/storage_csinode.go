package registry

import storagev1 "k8s.io/api/storage/v1"

var csiNodes = &Kind[*storagev1.CSINode]{
	GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("CSINode"),
	Plural:           "csinodes",
	RecheckName:      true,
	Cluster:          true,
	Conditional:      true,

	Validate: validateCSINode,
	Columns: []Column[*storagev1.CSINode]{
		nameColumn[*storagev1.CSINode](),
		column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node", 0,
			func(n *storagev1.CSINode) any { return int64(len(n.Spec.Drivers)) }),
		ageColumn[*storagev1.CSINode](),
	},
}
