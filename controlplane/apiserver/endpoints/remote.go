package endpoints

import (
	"maps"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Remote is what other servers serve: discovery shows it beside the kinds
// here.
type Remote struct {
	Groups []apidiscoveryv2.APIGroupDiscovery
	// Order is that of all groups, those served here too.
	Order []string
	// Documents are the paths of OpenAPI v3 documents, with their hashes, by
	// "apis/group/version".
	Documents map[string]string
	// Converted are documents made here, of servers that have only OpenAPI v2.
	Converted map[schema.GroupVersion]*RemoteDocument
	// Schemas are merged into OpenAPI v2, in this order.
	Schemas []RemoteSchemas
}

// A RemoteDocument is OpenAPI v3 of a group version served elsewhere.
type RemoteDocument struct {
	JSON []byte
	Hash string
}

// Converted says that the document of a group version served elsewhere is here.
func (s *Server) Converted(gv schema.GroupVersion) bool {
	r := s.remote.Load()
	return r != nil && r.Converted[gv] != nil
}

// SetRemote replaces what is served elsewhere; nil is nothing.
func (s *Server) SetRemote(r *Remote) { s.remote.Store(r) }

// Versions are the group versions served here.
func (s *Server) Versions() []schema.GroupVersion {
	return slices.Collect(maps.Keys(s.table.Load().versions))
}

// merged is a discovery with what is served elsewhere, kept until either
// changes.
type merged struct {
	own    *discovery
	remote *Remote
	both   *discovery
}

// discovery is what this server says is served, here and elsewhere.
func (s *Server) discovery() *discovery {
	own, remote := s.table.Load().discovery, s.remote.Load()
	if remote == nil {
		return own
	}
	if m := s.merged.Load(); m != nil && m.own == own && m.remote == remote {
		return m.both
	}
	m := &merged{own, remote, own.with(remote)}
	s.merged.Store(m)
	return m.both
}

// with is d and what is served elsewhere. A version that is served elsewhere is
// not served here.
func (d *discovery) with(r *Remote) *discovery {
	out := &discovery{byGroup: map[string]*metav1.APIGroup{}, lists: d.lists, cached: map[string]*aggregated{}}
	combined := map[string]*apidiscoveryv2.APIGroupDiscovery{}
	for i, g := range d.groups {
		own := d.combined[i].DeepCopy()
		combined[g.Name] = own
		out.add(g.DeepCopy())
	}
	for i := range r.Groups {
		remote := r.Groups[i].DeepCopy()
		g, have := out.byGroup[remote.Name], combined[remote.Name]
		if g == nil {
			g, have = &metav1.APIGroup{Name: remote.Name}, &apidiscoveryv2.APIGroupDiscovery{ObjectMeta: remote.ObjectMeta}
			combined[remote.Name] = have
			out.add(g)
		}
		for _, v := range remote.Versions {
			named := metav1.GroupVersionForDiscovery{GroupVersion: remote.Name + "/" + v.Version, Version: v.Version}
			if k := slices.Index(g.Versions, named); k >= 0 {
				have.Versions[k] = v
				continue
			}
			g.Versions, have.Versions = append(g.Versions, named), append(have.Versions, v)
		}
		if g.PreferredVersion.Version == "" {
			g.PreferredVersion = g.Versions[0]
		}
	}
	place := func(g *metav1.APIGroup) int {
		if i := slices.Index(r.Order, g.Name); i >= 0 {
			return i
		}
		return -1 // apiregistration.k8s.io, which comes first
	}
	slices.SortStableFunc(out.groups, func(x, y *metav1.APIGroup) int { return place(x) - place(y) })
	for _, g := range out.groups {
		out.combined = append(out.combined, *combined[g.Name])
	}
	return out
}

func (d *discovery) add(g *metav1.APIGroup) {
	d.groups = append(d.groups, g)
	d.byGroup[g.Name] = g
}
