package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/gatewayapi"
	"knarr/internal/programs"
)

const (
	bundleVersion, bundleChannel = "gateway.networking.k8s.io/bundle-version", "gateway.networking.k8s.io/channel"
	standardChannel              = "standard"
	definitionsPath              = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// install makes the definitions of the Gateway API's kinds, and the class. Older ones of the
// standard channel are brought up to date; newer ones, and those of the experimental
// channel, are a user's and stay.
func install(ctx context.Context, kube *rest.Config) error {
	text, err := programs.Read(programs.Definitions)
	if errors.Is(err, programs.ErrMissing) {
		slog.WarnContext(ctx, "gateway: the definitions of the Gateway API are not installed", "err", err)
		return nil
	} else if err != nil {
		return err
	}
	api, err := newAPIClient(kube)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		if err := api.define(ctx, line); err != nil {
			return err
		}
	}
	if !api.served(ctx) {
		return nil
	}
	class := &gw.GatewayClass{ObjectMeta: madeHere(ClassName), Spec: gw.GatewayClassSpec{ControllerName: gatewayapi.Controller}}
	err = api.rest.Post().Resource("gatewayclasses").Body(class).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the gateway class: %w", err)
	}
	return nil
}

// define makes one definition, or brings it up to date.
func (a *apiClient) define(ctx context.Context, text []byte) error {
	want := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &want.Object); err != nil {
		return fmt.Errorf("definition of the Gateway API: %w", err)
	}
	want.SetLabels(map[string]string{managedBy: us})
	name := want.GetName()
	body, err := a.rest.Get().AbsPath(definitionsPath, name).SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return a.send(ctx, a.rest.Post().AbsPath(definitionsPath), want)
	} else if err != nil {
		return fmt.Errorf("get the definition %s: %w", name, err)
	}
	var have metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &have); err != nil {
		return fmt.Errorf("get the definition %s: %w", name, err)
	}
	if !outdated(have.Annotations, want.GetAnnotations()) {
		return nil
	}
	labels, annotations := have.Labels, have.Annotations
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(annotations, want.GetAnnotations())
	want.SetLabels(labels)
	want.SetAnnotations(annotations)
	want.SetResourceVersion(have.ResourceVersion)
	return a.send(ctx, a.rest.Put().AbsPath(definitionsPath, name), want)
}

func (a *apiClient) send(ctx context.Context, r *rest.Request, object *unstructured.Unstructured) error {
	body, err := json.Marshal(object.Object)
	if err != nil {
		return err
	}
	err = r.SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("install the definition %s: %w", object.GetName(), err)
	}
	return nil
}

// outdated says whether a definition is an older one of the standard channel. Pure.
func outdated(have, want map[string]string) bool {
	if have[bundleChannel] != standardChannel {
		return false
	}
	h, err := version.ParseSemantic(have[bundleVersion])
	if err != nil {
		return false
	}
	w, err := version.ParseSemantic(want[bundleVersion])
	return err == nil && h.LessThan(w)
}
