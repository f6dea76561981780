package encryption

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// unserved are folders of upstream's store that are no resources.
var unserved = sets.New("apiserveripinfo", "serviceipallocations", "servicenodeportallocations")

// validateResources judges an entry's list of resources.
func validateResources(names []string, at *field.Path) (errs field.ErrorList) {
	if len(names) == 0 {
		return field.ErrorList{atLeastOne(at, at)}
	}
	if twice, overlap := overlaps(names); twice || overlap {
		if twice {
			errs = append(errs, field.Invalid(at, names, "the same resource cannot be specified multiple times"))
		}
		if overlap {
			errs = append(errs, field.Invalid(at, names, "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked"))
		}
	}
	for i, name := range names {
		if why := nameError(name); why != "" {
			errs = append(errs, field.Invalid(at.Index(i), name, why))
		}
	}
	return errs
}

func nameError(name string) string {
	gr := schema.ParseGroupResource(name)
	switch {
	case strings.ToLower(name) != name:
		return "resource name should not contain capital letters"
	case name == "*":
		return "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
	case unserved.Has(name):
		return "resources which do not have REST API/s cannot be encrypted"
	case gr.Group == "events.k8s.io":
		return "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file"
	case gr.Group == "extensions":
		return "'extensions' group has been removed and cannot be used for encryption"
	case gr.Group == "*" && gr.Resource != "*":
		return "encrypting the same resource across groups is not supported"
	}
	return ""
}

// overlaps says that a name is there twice, and that one covers another.
func overlaps(names []string) (twice, overlap bool) {
	seen, groups, wide := sets.New[schema.GroupResource](), map[string]int{}, sets.New[string]()
	for _, name := range names {
		gr := schema.ParseGroupResource(name)
		if seen.Has(gr) {
			twice = true
			continue
		}
		seen.Insert(gr)
		groups[gr.Group]++
		if gr.Resource == "*" {
			wide.Insert(gr.Group)
		}
	}
	for group := range wide {
		overlap = overlap || groups[group] > 1
	}
	return twice, overlap || wide.Has("*") && seen.Len() > 1
}
