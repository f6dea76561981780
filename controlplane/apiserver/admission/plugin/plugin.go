// Package plugin is the plugins of admission, one per file, and the ordered
// table of them. They read the cache and what each write says of itself, change
// incoming objects, and refuse.
package plugin

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/admission/webhook"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/watchcache"
)

// Config is what plugins read.
type Config struct {
	Cache      *watchcache.Cache
	RBAC       *authz.RBAC
	Authorizer authz.Authorizer
	// Dial reaches webhooks. Default: a net.Dialer.
	Dial webhook.Dialer
	// Enable and Disable name plugins that run, or do not, though the table
	// says otherwise.
	Enable, Disable []string
	// Counts counts what webhooks say. Default: nothing does.
	Counts *metrics.Admission
	// Settings are what their configuration says.
	Settings
}

// forbidden is the 403 of a plugin. It names the object even before a generated
// name has been made.
func forbidden(a *admission.Attributes, err error) error {
	return apierrors.NewForbidden(a.Resource.GroupResource(), a.DisplayName(), err)
}

// is says that a concerns that core resource itself, or the subresource given.
func is(a *admission.Attributes, resource, sub string) bool {
	return a.Resource.Group == "" && a.Resource.Resource == resource && a.Subresource == sub
}
