package extension

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestJudge(t *testing.T) {
	want := names{Plural: "as", Singular: "a", ShortNames: []string{"x"}, Kind: "A", ListKind: "AList"}
	for _, c := range []struct {
		name           string
		others         []names
		has            names
		accepted       names
		reason, serves string
	}{
		{"alone", nil, names{}, want, "NoConflicts", "InitialNamesAccepted"},
		{"others", []names{{Plural: "bs", Singular: "b", Kind: "B", ListKind: "BList"}}, names{}, want, "NoConflicts", "InitialNamesAccepted"},
		{"kind taken", []names{{Plural: "bs", Kind: "A"}}, names{}, names{Plural: "as", Singular: "a", ShortNames: []string{"x"}, ListKind: "AList"}, "KindConflict", "NotAccepted"},
		{"short name taken", []names{{ShortNames: []string{"x"}}}, names{}, names{Plural: "as", Singular: "a", Kind: "A", ListKind: "AList"}, "ShortNamesConflict", "NotAccepted"},
		{"singular taken by a plural", []names{{Plural: "a"}}, names{}, names{Plural: "as", ShortNames: []string{"x"}, Kind: "A", ListKind: "AList"}, "SingularConflict", "NotAccepted"},
		{"one's own", []names{want}, want, want, "NoConflicts", "InitialNamesAccepted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			crd := &customResourceDefinition{}
			crd.Spec.Names, crd.Status.AcceptedNames = want, c.has
			v := computeStatus(crd, c.others)
			if !sameNames(v.names, c.accepted) {
				t.Errorf("accepted %+v, want %+v", v.names, c.accepted)
			}
			if len(v.conditions) != 2 || v.conditions[0].Reason != c.reason || v.conditions[1].Reason != c.serves {
				t.Errorf("conditions %+v", v.conditions)
			}
			v.writeStatus(crd)
			if again := computeStatus(crd, c.others); !again.matchesStatus(crd) {
				t.Errorf("not content with what it told: %+v", again)
			}
		})
	}
}

func TestDeprecation(t *testing.T) {
	spec := &apiextensionsv1.CustomResourceDefinitionSpec{Group: "g.io", Names: names{Kind: "A"}, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
		{Name: "v1alpha1", Served: true, Deprecated: true}, {Name: "v1beta1", Served: true}, {Name: "v1", Served: true}, {Name: "v2", Served: false},
	}}
	if got, want := deprecation(spec, &spec.Versions[0]), "g.io/v1alpha1 A is deprecated; use g.io/v1 A"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	spec.Versions = spec.Versions[:1]
	if got, want := deprecation(spec, &spec.Versions[0]), "g.io/v1alpha1 A is deprecated"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
