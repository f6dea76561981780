package registry

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type trustBundle = *certificatesv1beta1.ClusterTrustBundle

var clusterTrustBundles = &Kind[trustBundle]{
	GroupVersionKind: certificatesv1beta1.SchemeGroupVersion.WithKind("ClusterTrustBundle"),
	Plural:           "clustertrustbundles",
	Cluster:          true,
	Conditional:      true,
	NameRuleOf:       func(b trustBundle) func(string, bool) []string { return bundleNameRule(b.Spec.SignerName) },

	Validate: validateTrustBundle,
	Fields:   func(b trustBundle) fields.Set { return fields.Set{"spec.signerName": b.Spec.SignerName} },
	Columns: []Column[trustBundle]{
		nameColumn[trustBundle](),
		column("SignerName", "string", certificatesv1beta1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"], 0,
			func(b trustBundle) any { return orElse(b.Spec.SignerName, "<none>") }),
	},
}

// bundleNameRule: a bundle of a signer is named after it, so that nobody else's can take
// its name.
func bundleNameRule(signer string) func(name string, prefix bool) []string {
	return func(name string, prefix bool) []string {
		if signer == "" {
			if strings.Contains(name, ":") {
				return []string{`ClusterTrustBundle without signer name must not have ":" in its name`}
			}
			return NameIsDNSSubdomain(name, prefix)
		}
		begin := strings.ReplaceAll(signer, "/", ":") + ":"
		rest, ok := strings.CutPrefix(name, begin)
		if !ok {
			return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, begin)}
		}
		return NameIsDNSSubdomain(rest, prefix)
	}
}

func validateTrustBundle(_ context.Context, b, old trustBundle) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	if b.Spec.SignerName != "" {
		f.add(validateSignerName(b.Spec.SignerName, at.Child("signerName")))
	}
	// What was stored stays valid, whatever is thought of certificates since.
	if old == nil || old.Spec.TrustBundle != b.Spec.TrustBundle {
		f.add(validateAnchors(b.Spec.TrustBundle, at.Child("trustBundle")))
	}
	if old != nil {
		f.add(unchanged(b.Spec.SignerName, old.Spec.SignerName, at.Child("signerName")))
	}
	return f.list
}

// maxTrustBundle is how many bytes of PEM a bundle may have.
const maxTrustBundle = 1 << 20

// validateAnchors checks certificates in PEM, each of an authority and none twice.
func validateAnchors(text string, at *field.Path) field.ErrorList {
	var f faults
	if len(text) > maxTrustBundle {
		return field.ErrorList{field.TooLong(at, "", maxTrustBundle)}
	}
	const omitted = "<value omitted>"
	places := map[string][]int{}
	rest := []byte(text)
	for i := 0; ; i++ {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		if fault := anchorFault(b); fault != "" {
			f.invalid(at, omitted, fmt.Sprintf("entry %d %s", i, fault))
			continue
		}
		places[string(b.Bytes)] = append(places[string(b.Bytes)], i)
	}
	if len(f.list) > 0 {
		return f.list
	}
	if len(places) == 0 {
		f.invalid(at, omitted, "at least one trust anchor must be provided")
	}
	for _, twice := range slices.SortedFunc(maps.Values(places), slices.Compare[[]int]) {
		if len(twice) > 1 {
			f.invalid(at, omitted, fmt.Sprintf("duplicate trust anchor (indices %v)", twice))
		}
	}
	return f.list
}

// anchorFault is what keeps a block from being an authority's certificate.
func anchorFault(b *pem.Block) string {
	switch {
	case b.Type != "CERTIFICATE":
		return "has bad block type: " + b.Type
	case len(b.Headers) != 0:
		return "has PEM block headers"
	}
	cert, err := x509.ParseCertificate(b.Bytes)
	switch {
	case err != nil:
		return "does not parse as X.509"
	case !cert.IsCA:
		return "does not have the CA bit set"
	case !cert.BasicConstraintsValid:
		return "has invalid basic constraints"
	}
	return ""
}
