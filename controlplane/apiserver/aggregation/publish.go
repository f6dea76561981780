package aggregation

import (
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/watchcache"
)

// publish shows discovery what is served elsewhere.
func (a *Aggregator) publish() {
	var all []*apiregistrationv1.APIService
	remote := false
	watchcache.Each(a.services, "", func(s *apiregistrationv1.APIService) bool {
		all = append(all, s)
		remote = remote || s.Spec.Service != nil
		return true
	})
	if !remote {
		a.cfg.API.SetRemote(nil)
		return
	}
	out := &endpoints.Remote{Documents: map[string]string{}, Converted: map[schema.GroupVersion]*endpoints.RemoteDocument{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, group := range helper.SortedByGroupAndVersion(all) {
		g := apidiscoveryv2.APIGroupDiscovery{}
		g.Name = group[0].Spec.Group
		out.Order = append(out.Order, g.Name)
		for _, s := range group {
			if s.Spec.Service == nil || g.Name == "" {
				continue
			}
			version := apidiscoveryv2.APIVersionDiscovery{Version: s.Spec.Version}
			if found := a.found[s.Name]; found != nil {
				version = found.version
			}
			known := a.schemas[s.Name]
			switch {
			case known.converted != nil:
				out.Converted[schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}] = known.converted
				out.Documents[documentOf(s)] = "/openapi/v3/" + documentOf(s) + "?hash=" + known.converted.Hash
			case known.document != "":
				out.Documents[documentOf(s)] = known.document
			}
			if known.merged.Schemas != nil {
				out.Schemas = append(out.Schemas, known.merged)
			}
			version.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
			if available(s) {
				version.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
			}
			g.Versions = append(g.Versions, version)
		}
		if len(g.Versions) > 0 {
			out.Groups = append(out.Groups, g)
		}
	}
	a.cfg.API.SetRemote(out)
}
