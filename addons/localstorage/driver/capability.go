package driver

import (
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"knarr/addons/localstorage/disk"
)

// accessModes are those of volumes that one node has.
var accessModes = []csipb.VolumeCapability_AccessMode_Mode{
	csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
}

// FSType is the one file system that volumes can have.
const FSType = "ext4"

// check says whether a volume can be used in these ways, and whether it is a
// block device in them. Pure.
func check(all ...*csipb.VolumeCapability) (block bool, err error) {
	if len(all) == 0 || all[0] == nil {
		return false, invalid("Volume capabilities missing in request")
	}
	for i, c := range all {
		if c.GetBlock() == nil && c.GetMount() == nil {
			return false, invalid("Volume capability has neither block nor mount")
		}
		if is := c.GetBlock() != nil; i > 0 && is != block {
			return false, invalid("Volume capabilities are of both block and mount")
		}
		block = c.GetBlock() != nil
		if mode := c.GetAccessMode().GetMode(); !slices.Contains(accessModes, mode) {
			return false, invalid("Access mode %s is not supported: a local volume belongs to one node", mode)
		}
		if fs := c.GetMount().GetFsType(); fs != "" && fs != FSType {
			return false, invalid("File system %q is not supported; local volumes have %s", fs, FSType)
		}
		if _, err := disk.Flags(c.GetMount().GetMountFlags()); err != nil {
			return false, invalid("%v", err)
		}
	}
	return block, nil
}
