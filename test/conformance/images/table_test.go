package main

import (
	"slices"
	"testing"

	upstream "k8s.io/kubernetes/test/utils/image"
)

// TestNames: every image that conformance specs name is in the table, under
// the name that this version of the suite gives it.
func TestNames(t *testing.T) {
	var have []string
	for _, im := range images {
		have = append(have, im.names...)
	}
	for _, id := range []upstream.ImageID{upstream.Agnhost, upstream.AgnhostPrev, upstream.APIServer, upstream.BusyBox, upstream.Etcd, upstream.GlibcDnsTesting,
		upstream.Kitten, upstream.Nautilus, upstream.Nginx, upstream.NginxNew, upstream.Nonewprivs, upstream.NonRoot, upstream.Pause} {
		if name := upstream.GetE2EImage(id); !slices.Contains(have, name) {
			t.Errorf("no recipe for %s", name)
		}
	}
}
