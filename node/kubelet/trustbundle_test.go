package kubelet

import (
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestIsAbsent: that a kind is not served says nothing of an object of it.
func TestIsAbsent(t *testing.T) {
	bundles := schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	if !isAbsent(apierrors.NewNotFound(bundles, "a")) {
		t.Error("an object that is not there")
	}
	if isAbsent(apierrors.NewGenericServerResponse(http.StatusNotFound, "get", bundles, "a", "404 page not found", 0, true)) {
		t.Error("a kind that is not served")
	}
}
