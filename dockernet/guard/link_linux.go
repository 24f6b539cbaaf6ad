package guard

import (
	"errors"
	"fmt"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// link is what the guard has to know of an interface.
type link struct {
	index, master int
	name, kind    string
	does          [habits]bool // of a bridge
	groups        uint16       // of its link-local groups, which it passes on
}

// What a bridge may do: call the hooks of IPv4, and of IPv6, for what it passes on; and pass on what is for the group
// 01:80:c2:00:00:0e, as all else. Of frames that it does not pass on it learns where their source is, and for this one
// group it asks no rules before (br_handle_frame).
const (
	calls4 = iota
	calls6
	passes
	habits

	passesBit = 1 << 0x0e
)

// parseLink reads the answer or the news of an interface (RTM_NEWLINK, linux/if_link.h).
func parseLink(b []byte) (l link, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return l, errors.New("a message about an interface is too short")
	}
	l.index = int(nl.DeserializeIfInfomsg(b).Index)
	d, err := mdnetlink.NewAttributeDecoder(b[unix.SizeofIfInfomsg:])
	if err != nil {
		return l, err
	}
	for d.Next() {
		switch d.Type() {
		case unix.IFLA_IFNAME:
			l.name = d.String()
		case unix.IFLA_MASTER:
			l.master = int(d.Uint32())
		case unix.IFLA_LINKINFO:
			d.Nested(l.info)
		}
	}
	return l, d.Err()
}

func (l *link) info(d *mdnetlink.AttributeDecoder) error {
	for d.Next() {
		switch d.Type() {
		case nl.IFLA_INFO_KIND:
			l.kind = d.String()
		case nl.IFLA_INFO_DATA:
			if l.kind != "bridge" { // the kernel tells the kind first
				continue
			}
			d.Nested(func(d *mdnetlink.AttributeDecoder) error {
				for d.Next() {
					switch d.Type() {
					case nl.IFLA_BR_NF_CALL_IPTABLES:
						l.does[calls4] = d.Uint8() != 0
					case nl.IFLA_BR_NF_CALL_IP6TABLES:
						l.does[calls6] = d.Uint8() != 0
					case nl.IFLA_BR_GROUP_FWD_MASK:
						l.groups = d.Uint16()
						l.does[passes] = l.groups&passesBit != 0
					}
				}
				return nil
			})
		}
	}
	return nil
}

// request asks the kernel something about interfaces.
func (h *Host) request(r *nl.NetlinkRequest, answer uint16) (answers [][]byte, err error) {
	err = h.in(func() (err error) {
		answers, err = r.Execute(unix.NETLINK_ROUTE, answer)
		return err
	})
	return answers, err
}

// bridge asks for one.
func (h *Host) bridge(name string) (link, error) {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	answers, err := h.request(r, unix.RTM_NEWLINK)
	if errors.Is(err, unix.ENODEV) {
		return link{}, ErrNoBridge
	}
	if err != nil {
		return link{}, fmt.Errorf("ask for the interface: %w", err)
	}
	if len(answers) != 1 {
		return link{}, fmt.Errorf("ask for the interface: %d answers", len(answers))
	}
	l, err := parseLink(answers[0])
	if err == nil && l.kind != "bridge" {
		err = ErrNoBridge
	}
	return l, err
}

// allLinks asks for all interfaces.
func (h *Host) allLinks() ([]link, error) {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	answers, err := netns.Whole(func() ([][]byte, error) { return h.request(r, unix.RTM_NEWLINK) })
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	list := make([]link, len(answers))
	for i := range answers {
		if list[i], err = parseLink(answers[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// teach gives a bridge habits, whatever the global sysctls say.
func (h *Host) teach(l link, does [habits]bool) error {
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(l.index)
	r.AddData(message)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	value := map[bool]byte{true: 1}
	data.AddRtAttr(nl.IFLA_BR_NF_CALL_IPTABLES, nl.Uint8Attr(value[does[calls4]]))
	data.AddRtAttr(nl.IFLA_BR_NF_CALL_IP6TABLES, nl.Uint8Attr(value[does[calls6]]))
	if does[passes] != l.does[passes] {
		data.AddRtAttr(nl.IFLA_BR_GROUP_FWD_MASK, nl.Uint16Attr(l.groups^passesBit))
	}
	r.AddData(info)
	if _, err := h.request(r, 0); err != nil {
		return fmt.Errorf("set nf_call_iptables and group_fwd_mask: %w", err)
	}
	return nil
}

// foundBridge takes a bridge under the host's rules if it is to be looked after. The host's sets must be locked, as
// for all that follow.
func (h *Host) foundBridge(l link) error {
	if !h.names[allBridges][l.name] {
		return nil
	}
	for index, name := range h.indexes {
		if name == l.name && index != l.index {
			delete(h.indexes, index)
		}
	}
	_, known := h.indexes[l.index]
	h.indexes[l.index] = l.name
	shall := l.does
	var changes []change
	for i, set := range made {
		ours := h.names[set][l.name]
		switch {
		case i != passes || h.names[managedBridges][l.name]:
			shall[i] = true
			// What it did before is not forgotten if that was changed meanwhile.
			ours = !l.does[i] || known && ours
		case ours:
			shall[i], ours = false, false
		}
		changes = append(changes, change{set, l.name, ours})
	}
	if shall == l.does {
		return nil
	}
	return errors.Join(h.change(changes...), h.teach(l, shall))
}

// foundPort lets a port of a managed network say nothing without a mark, and leaves others alone.
func (h *Host) foundPort(l link) error {
	managed := h.names[managedBridges][h.indexes[l.master]]
	if managed == h.names[managedPorts][l.name] {
		return nil
	}
	return h.change(change{managedPorts, l.name, managed})
}

// findBridge looks for a bridge and its ports.
func (h *Host) findBridge(name string) error {
	l, err := h.bridge(name)
	if err != nil {
		return err
	}
	if err := h.foundBridge(l); err != nil {
		return err
	}
	list, err := h.allLinks()
	for _, port := range list {
		if port.master == l.index {
			err = errors.Join(err, h.foundPort(port))
		}
	}
	return err
}

// findLinks looks for all bridges and ports, and forgets ports that are gone.
func (h *Host) findLinks() error {
	list, err := h.allLinks()
	if err != nil {
		return err
	}
	clear(h.indexes)
	for _, l := range list {
		if l.kind == "bridge" {
			err = errors.Join(err, h.foundBridge(l))
		}
	}
	there := make(map[string]bool)
	for _, l := range list {
		there[l.name] = true
		err = errors.Join(err, h.foundPort(l))
	}
	for name := range h.names[managedPorts] {
		if !there[name] {
			err = errors.Join(err, h.change(change{managedPorts, name, false}))
		}
	}
	return err
}

// linkNews takes what the kernel tells of an interface. Locks the host's sets.
func (h *Host) linkNews(m mdnetlink.Message) error {
	l, err := parseLink(m.Data)
	if err != nil {
		return err
	}
	h.sets.Lock()
	defer h.sets.Unlock()
	switch {
	case m.Header.Type == unix.RTM_DELLINK:
		// Of family AF_BRIDGE it only says that the interface is no port any more.
		l.master = 0
		if m.Data[0] != unix.AF_BRIDGE {
			delete(h.indexes, l.index)
		}
	case l.kind == "bridge":
		err = h.foundBridge(l)
	}
	return errors.Join(err, h.foundPort(l))
}
