// Package features are upstream's feature gates: names, defaults and stages of all,
// those that are off by default and can be turned on here, and a metric of what is on. It
// reads and writes nothing but contexts.
package features

import "context"

// Those that can be turned on, by upstream's names.
const (
	// DiscardUnreadable lets those with the right delete what cannot be read, on their
	// word.
	DiscardUnreadable = "AllowUnsafeMalformedObjectDeletion"
	// ScaleToZero lets autoscalers go down to no pod.
	ScaleToZero = "HPAScaleToZero"
	// StorageVersionMigrator has what is stored written anew, where its API is served.
	StorageVersionMigrator = "StorageVersionMigrator"
	// TrustBundles serves ClusterTrustBundles, where their version is asked for.
	TrustBundles = "ClusterTrustBundle"
	// TrustBundleVolumes keeps ClusterTrustBundles among the sources of volumes.
	TrustBundleVolumes = "ClusterTrustBundleProjection"
	// PodCertificates serves PodCertificateRequests, where their version is asked for,
	// and keeps certificates of pods among the sources of volumes.
	PodCertificates = "PodCertificateRequest"
	// StorageVersions has each API server say in StorageVersions how it stores what.
	StorageVersions = "StorageVersionAPI"
)

// Settable are their names.
var Settable = []string{DiscardUnreadable, ScaleToZero, StorageVersionMigrator, TrustBundles, TrustBundleVolumes, PodCertificates, StorageVersions}

// Needs is the feature without which that of the key cannot be on.
var Needs = map[string]string{TrustBundleVolumes: TrustBundles}

// A Set has the features that are on.
type Set map[string]bool

type key struct{}

// With says what is on for a request.
func (s Set) With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, s) }

// On says whether a feature is on for a request.
func On(ctx context.Context, name string) bool {
	s, _ := ctx.Value(key{}).(Set)
	return s[name]
}
