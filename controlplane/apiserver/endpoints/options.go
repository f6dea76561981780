package endpoints

import (
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/request"
)

func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// listOptions reads the options of list, watch and deletecollection.
func (c *call) listOptions() (*internalversion.ListOptions, error) {
	opts := &internalversion.ListOptions{}
	if c.r.URL.RawQuery != "" {
		p := request.Params{Values: c.query()}
		opts.ResourceVersion = p.Get("resourceVersion")
		opts.ResourceVersionMatch = metav1.ResourceVersionMatch(p.Get("resourceVersionMatch"))
		opts.Continue = p.Get("continue")
		if n := p.Int64("limit"); n != nil {
			opts.Limit = *n
		}
		opts.TimeoutSeconds = p.Int64("timeoutSeconds")
		opts.AllowWatchBookmarks = p.Is("allowWatchBookmarks")
		opts.SendInitialEvents = p.Bool("sendInitialEvents")
		if p.Err != nil {
			return nil, p.Err
		}
		var err error
		if s := p.Get("labelSelector"); s != "" {
			if opts.LabelSelector, err = labels.Parse(s); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
		if s := p.Get("fieldSelector"); s != "" {
			if opts.FieldSelector = c.info.Fields; opts.FieldSelector == nil {
				if opts.FieldSelector, err = fields.ParseSelector(s); err != nil {
					return nil, apierrors.NewBadRequest(err.Error())
				}
			}
			if err := c.checkFields(opts.FieldSelector); err != nil {
				return nil, err
			}
		}
	}
	opts.Watch = c.info.Verb == "watch"
	if opts.Watch && opts.Continue != "" && (opts.ResourceVersion == "" || opts.ResourceVersion == "0") && opts.ResourceVersionMatch == "" && opts.SendInitialEvents == nil {
		// What upstream adds to such a watch, and then finds fault with.
		opts.SendInitialEvents, opts.ResourceVersionMatch = new(true), metav1.ResourceVersionMatchNotOlderThan
	}
	if err := invalidOptions("ListOptions", listvalidation.ValidateListOptions(opts, true)); err != nil {
		return nil, err
	}
	// A name in the path and one in the selector must agree.
	if c.info.Name != "" && opts.FieldSelector != nil {
		if name, ok := opts.FieldSelector.RequiresExactMatch(metav1.ObjectNameField); ok && name != c.info.Name {
			return nil, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
		}
	}
	return opts, nil
}

func (e *entry) checkFields(selector fields.Selector) error {
	for _, r := range selector.Requirements() {
		if e.labels[r.Field] || r.Field == "metadata.name" {
			continue
		}
		plain := len(e.labels) == 1 || len(e.labels) == 2 && e.labels["metadata.namespace"]
		if !plain || e.custom != nil {
			return apierrors.NewBadRequest(e.noField(r.Field))
		}
		if r.Field == "metadata.namespace" {
			continue
		}
		return apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only %q, %q", r.Field, "metadata.name", "metadata.namespace"))
	}
	return nil
}

// noField says in upstream's words that a kind has no such field to select by.
func (e *entry) noField(name string) string {
	switch e.qualified {
	case "jobs.batch":
		return fmt.Sprintf("field label %q not supported for Job", name)
	case "resourceslices.resource.k8s.io":
		return fmt.Sprintf("field label not supported for %v: %s", e.gvk, name)
	}
	return "field label not supported: " + name
}

func (c *call) createOptions() (*metav1.CreateOptions, error) {
	opts := &metav1.CreateOptions{}
	if c.r.URL.RawQuery != "" {
		q := c.query()
		opts.DryRun, opts.FieldManager, opts.FieldValidation = q["dryRun"], q.Get("fieldManager"), q.Get("fieldValidation")
		if err := invalidOptions("CreateOptions", metavalidation.ValidateCreateOptions(opts)); err != nil {
			return nil, err
		}
	}
	opts.Kind, opts.APIVersion = "CreateOptions", "meta.k8s.io/v1"
	return opts, nil
}

func (c *call) updateOptions() (*metav1.UpdateOptions, error) {
	opts := &metav1.UpdateOptions{}
	if c.r.URL.RawQuery != "" {
		q := c.query()
		opts.DryRun, opts.FieldManager, opts.FieldValidation = q["dryRun"], q.Get("fieldManager"), q.Get("fieldValidation")
		if err := invalidOptions("UpdateOptions", metavalidation.ValidateUpdateOptions(opts)); err != nil {
			return nil, err
		}
	}
	opts.Kind, opts.APIVersion = "UpdateOptions", "meta.k8s.io/v1"
	return opts, nil
}

func (c *call) patchOptions(kind types.PatchType) (*metav1.PatchOptions, error) {
	p := request.Params{Values: c.query()}
	opts := &metav1.PatchOptions{
		DryRun: p.Values["dryRun"], Force: p.Bool("force"),
		FieldManager: p.Get("fieldManager"), FieldValidation: p.Get("fieldValidation"),
	}
	if err := invalidOptions("PatchOptions", metavalidation.ValidatePatchOptions(opts, kind)); err != nil {
		return nil, err
	}
	opts.Kind, opts.APIVersion = "PatchOptions", "meta.k8s.io/v1"
	return opts, nil
}

// deleteOptions come in the body, or in the query when there is none.
func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	body, release, err := readBody(c.r)
	if err != nil {
		return nil, err
	}
	defer release()
	c.beginWrite()
	if err := c.info.ReserveMemory(len(body)); err != nil {
		return nil, err
	}
	if len(body) > 0 {
		f, err := bodyFormat(c.r)
		if err != nil {
			return nil, err
		}
		if f == formatYAML || f == formatJSON {
			_, err = decodeDeleteOptions(f, body, opts)
		} else {
			err = decodeDeleteProtobuf(body, opts)
		}
		if err != nil {
			return nil, err
		}
		c.auditOptions(opts)
	} else if c.r.URL.RawQuery != "" {
		p := request.Params{Values: c.query()}
		opts.GracePeriodSeconds = p.Int64("gracePeriodSeconds")
		opts.OrphanDependents = p.Bool("orphanDependents")
		if v := p.Get("propagationPolicy"); v != "" {
			opts.PropagationPolicy = new(metav1.DeletionPropagation(v))
		}
		opts.DryRun = p.Values["dryRun"]
		opts.IgnoreStoreReadErrorWithClusterBreakingPotential = p.Bool("ignoreStoreReadErrorWithClusterBreakingPotential")
		if p.Err != nil {
			return nil, p.Err
		}
	}
	if c.s.cfg.Discards == nil {
		opts.IgnoreStoreReadErrorWithClusterBreakingPotential = nil
	}
	if err := invalidOptions("DeleteOptions", metavalidation.ValidateDeleteOptions(opts)); err != nil {
		return nil, err
	}
	opts.Kind, opts.APIVersion = "DeleteOptions", "meta.k8s.io/v1"
	return opts, nil
}

var deleteOptionsKind = metav1.SchemeGroupVersion.WithKind("DeleteOptions")

func decodeDeleteOptions(f format, body []byte, opts *metav1.DeleteOptions) ([]error, error) {
	// Any group's version of the options is the same type.
	var meta struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}
	if f == formatJSON {
		if err := json.Unmarshal(body, &meta); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("couldn't get version/kind; json parse error: %v", err))
		}
	}
	_, err := decodeAny(f, body, opts)
	if err != nil {
		return nil, err
	}
	if opts.Kind != "" && opts.Kind != "DeleteOptions" {
		found := opts.GroupVersionKind()
		if !scheme.Scheme.Recognizes(found) {
			return nil, apierrors.NewBadRequest(unregistered(found))
		}
		return nil, apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	return nil, nil
}
