package endpoints

import (
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/request"
)

// componentStatuses answers how the parts of the control plane are. Nothing of
// it is stored.
func (c *call) componentStatuses() error {
	request.Warn(c.ctx, "v1 ComponentStatus is deprecated in v1.19+")
	opts, err := c.listOptions()
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	var all []corev1.ComponentStatus
	if c.s.cfg.Components != nil {
		all = c.s.cfg.Components(c.ctx)
	}
	if c.info.Verb == "get" {
		i := slices.IndexFunc(all, func(s corev1.ComponentStatus) bool { return s.Name == c.info.Name })
		if i < 0 {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "componentstatus"}, c.info.Name)
		}
		return c.write(http.StatusOK, &all[i])
	}
	all = slices.DeleteFunc(all, func(s corev1.ComponentStatus) bool {
		return opts.LabelSelector != nil && !opts.LabelSelector.Matches(labels.Set(s.Labels)) ||
			opts.FieldSelector != nil && !opts.FieldSelector.Matches(fields.Set{"metadata.name": s.Name})
	})
	return c.writeComponents(all)
}

func (c *call) writeComponents(all []corev1.ComponentStatus) error {
	if c.out.as == "" {
		list := &corev1.ComponentStatusList{Items: all}
		gvk := c.gvk.GroupVersion().WithKind(c.res.Names().ListKind)
		setKind(list, gvk)
		writeObject(c.w, c.r, c.out, http.StatusOK, list, gvk)
		return nil
	}
	if c.out.as != "Table" {
		list := &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{}}
		for i := range all {
			item := partial(&all[i])
			setKind(item, c.viewKind("PartialObjectMetadata"))
			list.Items = append(list.Items, *item)
		}
		writeObject(c.w, c.r, c.out, http.StatusOK, list, c.viewKind("PartialObjectMetadataList"))
		return nil
	}
	table, err := c.newTableView(true)
	if err != nil {
		return err
	}
	for i := range all {
		row, err := c.row(&all[i])
		if err != nil {
			return err
		}
		table.Rows = append(table.Rows, row)
	}
	writeObject(c.w, c.r, c.out, http.StatusOK, table, c.viewKind("Table"))
	return nil
}
