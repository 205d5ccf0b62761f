use super::*;

struct Nothing;
impl Site for Nothing {
    fn window(&mut self, _page: u32, _pages: u32) -> Result<u32, AuditError> {
        Ok(0x1000)
    }
    fn fetch(&mut self, _address: u32, _dwords: &mut [u32]) -> Result<(), AuditError> {
        Ok(())
    }
    fn place(&mut self, _batch: &[u32]) -> Result<u32, AuditError> {
        Ok(0x2000)
    }
}

#[test]
fn a_store_to_the_global_table_is_moved() {
    let mut site = Nothing;
    let mut words = [0x1040_0002, 0x0012_3458, 0, 7];
    Auditor::new(Engine::Bcs, &mut site, AuditLimits::default())
        .ring(&mut words, 0, 0x1000)
        .unwrap();
    assert_eq!(words, [0x1040_0002, 0x1458, 0, 7]);
}
