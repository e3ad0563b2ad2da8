# OpenROAD's commands and objects as far as the flow's own Tcl calls them: two instances in a core of 100 by 75 um, two
# routing layers, one clock net. Commands that are not here do nothing; metrics are printed.
namespace eval utl {
  proc set_metrics_stage { stage } {}
  proc metric_int { name value } { puts "metric $name [expr { int($value) }]" }
  proc metric_float { name value } { puts "metric $name [expr { double($value) }]" }
  proc error { tool id message } { ::error "\[ERROR $tool-[format %04d $id]\] $message" }
}
namespace eval ord {
  proc get_db_block { } { return block }
  proc get_db_tech { } { return tech }
}
namespace eval gpl {
  proc get_global_placement_uniform_density { args } { return 0.55 }
}
namespace eval rsz {
  proc hold_buffer_count { } { return 3 }
}
namespace eval sta {
  proc find_all_clk_nets { } { return clock_net }
  proc cmd_scene { } { return scene }
  proc network_leaf_instances { } { return {cell_of_a cell_of_top second_of_a} }
  proc instance_power { instance scene } { return {1e-6 2e-6 3e-9 4e-6} }
  proc find_pin { name } { return [expr { $name eq "gone/Z" ? "NULL" : $name }] }
  proc set_power_pin_activity { pin density duty } { puts "activity $pin [expr { $density + 0.0 }] $duty" }
}
proc object { name values } {
  proc $name { method args } "return \[dict get {$values} \$method\]"
}
object block {
  getInsts {buffer flip_flop} getCoreArea core getDbUnitsPerMicron 2000 getGCellGrid grid
}
object core {xMin 5700 yMin 5600 xMax 205700 yMax 155600 dx 200000 dy 150000}
object tech {getLayers {low cut horizontal vertical}}
object low {getRoutingLevel 1 getDirection HORIZONTAL}
object cut {getRoutingLevel 0 getDirection NONE}
object horizontal {getRoutingLevel 3 getDirection HORIZONTAL}
object vertical {getRoutingLevel 2 getDirection VERTICAL}
object grid {getGridX {0 8400 16800} getGridY {0 8400} getUsage 3.0 getCapacity 2.5}
object buffer {isBlock 0 getBBox buffer_box getMaster buffer_master getName u1 getITerms {clock_pin supply_pin}}
object flip_flop {isBlock 0 getBBox flip_flop_box getMaster flip_flop_master getName u/2 getITerms {clock_pin_2 supply_pin}}
object buffer_master {getName BUF_X4}
object flip_flop_master {getName DFF_X1}
object buffer_box {xMin 5700 yMin 5600 xMax 15700 yMax 8400}
object flip_flop_box {xMin 205000 yMin 155000 xMax 205700 yMax 155600}
object clock_net {getITerms {clock_pin clock_pin_2 output_pin}}
object clock_pin {isInputSignal 1 getInst buffer getSigType CLOCK getNet clock_net}
object clock_pin_2 {isInputSignal 1 getInst flip_flop getSigType CLOCK getNet clock_net}
object output_pin {isInputSignal 0 getInst buffer getSigType SIGNAL getNet clock_net}
object supply_pin {isInputSignal 0 getInst buffer getSigType POWER getNet supply}
proc find_timing_paths { args } { return {worst second} }
proc get_property { of what } {
  set names {cell_of_a {a\/b\/c} second_of_a a/d cell_of_top t end_of_worst {r\[3\]/D} end_of_second s/D}
  switch $what {
    slack { return [expr { $of eq "worst" ? 1.25 : 2.5 }] }
    endpoint { return end_of_$of }
    full_name { return [dict get $names $of] }
  }
}
proc detailed_route_num_drvs { } { return 0 }
proc design_is_routed { } { return $::env(ROUTED) }
proc all_inputs { } { return {} }
proc get_ports { args } { return {} }
proc unknown { args } { return "" }
