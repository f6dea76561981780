package driver

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// GetPluginInfo says who this is.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: Name, VendorVersion: d.Version}, nil
}

// GetPluginCapabilities says that this is controller and node, of volumes that
// belong to a node and grow while they are in use.
func (d *Driver) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (*csipb.GetPluginCapabilitiesResponse, error) {
	r := &csipb.GetPluginCapabilitiesResponse{}
	for _, s := range []csipb.PluginCapability_Service_Type{csipb.PluginCapability_Service_CONTROLLER_SERVICE, csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS} {
		r.Capabilities = append(r.Capabilities, &csipb.PluginCapability{Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: s}}})
	}
	r.Capabilities = append(r.Capabilities, &csipb.PluginCapability{Type: &csipb.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{Type: csipb.PluginCapability_VolumeExpansion_ONLINE},
	}})
	return r, nil
}

// Probe says that this is ready: it serves only once its volumes are known.
func (d *Driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}
