package endpoints

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/watchcache"
)

// TestExpiredPage: who comes too late for the next page gets a token for the
// rest as it is now.
func TestExpiredPage(t *testing.T) {
	err := (&entry{}).fromCache(&watchcache.ContinueExpiredError{Token: "next"}, "")
	var status *apierrors.StatusError
	if !errors.As(err, &status) || !apierrors.IsResourceExpired(err) || status.ErrStatus.Continue != "next" ||
		!strings.Contains(status.ErrStatus.Message, "or use the continue token in this response") {
		t.Errorf("%#v", err)
	}
}
