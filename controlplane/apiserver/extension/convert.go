package extension

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Served makes of a stored object, of whichever version, what k serves.
func (k *kind) Served(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	from := u.GroupVersionKind().Version
	s, err := k.shape(from)
	if err != nil {
		return nil, err
	}
	if _, err := s.coerce(u, coercion{stored: true}); err != nil {
		return nil, err
	}
	s.setDefaults(u)
	return k.converted(u, k.gvk.GroupVersion())
}

// Stored makes of an object that k serves one of the version that is stored.
func (k *kind) Stored(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	to := schema.GroupVersion{Group: k.gvk.Group, Version: k.definition.storage}
	if u.GroupVersionKind().GroupVersion() == to {
		return u, nil
	}
	return k.converted(u.DeepCopy(), to)
}

func (k *kind) Convert(u *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error) {
	return k.converted(u, to)
}

// converted turns u, which it may change, into another version.
func (d *definition) converted(u *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error) {
	from := u.GroupVersionKind().GroupVersion()
	if from == to {
		return u, nil
	}
	for _, gv := range []schema.GroupVersion{to, from} {
		if gv.Group != d.crd.Spec.Group || !d.has(gv.Version) {
			way := "to"
			if gv == from {
				way = "from"
			}
			return nil, fmt.Errorf("request to convert CR %s an invalid group/version: %s", way, gv)
		}
	}
	if d.webhook != nil {
		out, err := d.webhook.convert(u, to)
		if err != nil {
			return nil, err
		}
		u = out
	} else {
		u.SetAPIVersion(to.String())
	}
	s, err := d.shape(to.Version)
	if err != nil {
		return nil, err
	}
	_, err = s.coerce(u, coercion{})
	return u, err
}

func (d *definition) has(version string) bool {
	for _, v := range d.crd.Spec.Versions {
		if v.Name == version {
			return true
		}
	}
	return false
}

// webhookOf is how a definition's objects are converted elsewhere, nil when
// they are not.
func webhookOf(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.WebhookConversion {
	c := crd.Spec.Conversion
	if c == nil || c.Strategy != apiextensionsv1.WebhookConverter || c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return nil
	}
	return c.Webhook
}
